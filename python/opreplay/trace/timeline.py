"""Operators in the time of a trace: lanes come in, columns with one row per operator go out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from opreplay.trace.annotations import enclosing_annotations, with_profiler_steps
from opreplay.trace.dropped_indices import with_indices
from opreplay.trace.events import BoolArray, Events, Examples, FloatArray, IdArray, Lanes
from opreplay.trace.kernels import Launches, captured, link
from opreplay.trace.kinds import Kind, classify
from opreplay.trace.nesting import NOTHING, Nest, nest, preorder

__all__ = ["Timeline", "build_timeline"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Operators by thread and start, an enclosing one before those inside; a row each.

    Times are microseconds of the trace's clock.
    """

    lanes: Lanes
    """The events; operators in the order of the rows."""
    tree: Nest
    """Which operator runs inside which."""
    kinds: tuple[Kind, ...]
    """What each of ``lanes.op.examples`` stands for."""
    host_self: FloatArray
    """Duration without the operators inside."""
    launches: Launches
    """GPU events by operator."""
    device: FloatArray
    """From the start of the first to the end of the last GPU event inside; NaN without one."""
    device_self: FloatArray
    """Summed time of the GPU events whose innermost operator this is."""
    parent: IdArray
    """Row of the innermost enclosing event of kind `operator`, or `NOTHING`."""
    leaf: BoolArray
    """True if no event of kind `operator` runs inside."""
    in_graph: BoolArray
    """True if a GPU graph was being captured."""
    annotations: Events
    """Annotations and profiler steps."""
    step: IdArray
    """Row in `annotations` of the innermost enclosing annotation, or `NOTHING`."""


def build_timeline(unsorted: Lanes) -> Timeline:
    """Nests the operators, finds their GPU events and annotations."""
    ops = unsorted.op.take(preorder(unsorted.op))
    lanes = replace(unsorted, op=ops)
    tree = nest(ops)
    ops = with_indices(ops, tree)
    lanes = replace(lanes, op=ops)
    launches = link(lanes, tree)
    kinds = _kinds(ops.examples)
    is_operator = ops.where(kind == "operator" for kind in kinds)
    before = np.concatenate([[0], np.cumsum(is_operator)])
    rows = np.arange(len(ops))
    annotations = with_profiler_steps(lanes)
    timeline = Timeline(
        lanes=lanes,
        tree=tree,
        kinds=kinds,
        host_self=_own_time(ops, tree),
        launches=launches,
        device=_device_span(lanes.gpu, launches.owner, tree),
        device_self=_sum_by(launches.owner, lanes.gpu.duration, len(ops)),
        parent=tree.nearest(is_operator),
        leaf=before[rows + tree.size] == before[rows + 1],
        in_graph=captured(lanes),
        annotations=annotations,
        step=enclosing_annotations(ops, annotations),
    )
    return _without_durations(timeline) if lanes.untimed else timeline


def _without_durations(timeline: Timeline) -> Timeline:
    """Sets every duration to 0: the clock that nested the operators measured no time."""
    none = np.zeros(len(timeline.lanes.op))
    ops = replace(timeline.lanes.op, duration=none)
    return replace(timeline, lanes=replace(timeline.lanes, op=ops), host_self=none)


def _kinds(examples: Examples) -> tuple[Kind, ...]:
    kind_of = {name: classify(name) for name in set(examples.names)}
    kinds = [kind_of[name] for name in examples.names]
    for number, fields in examples.fields.items():
        if fields.get("kernel_backend") == "triton":  # a launch of Inductor's, whatever its name
            kinds[number] = "triton"
    return tuple(kinds)


def _own_time(ops: Events, tree: Nest) -> FloatArray:
    inside = _sum_by(tree.parent, ops.duration, len(ops))
    return np.maximum(ops.duration - inside, 0.0)


def _sum_by(row: IdArray, values: FloatArray, count: int) -> FloatArray:
    """Sums `values` by row; those of `NOTHING` are left out."""
    found = row != NOTHING
    return np.bincount(row[found], values[found], count).astype(np.float64)


def _device_span(gpu: Events, owner: IdArray, tree: Nest) -> FloatArray:
    count = len(tree.parent)
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    owned = owner != NOTHING
    np.minimum.at(first, owner[owned], gpu.start[owned])
    np.maximum.at(last, owner[owned], gpu.end[owned])
    span = tree.reduce(last, np.maximum) - tree.reduce(first, np.minimum)
    return np.where(np.isfinite(span), span, np.nan)
