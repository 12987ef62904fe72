"""Graphs that ran, and their capture: two timelines come in, captured launches get kernels.

A graph launch carries kernels and no operators, its capture carries operators and no kernels.
Both name the kernels in the order of the launches, so that one tells what the other lacks.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opreplay.trace.annotations import enclosing_annotations
from opreplay.trace.events import Events, IdArray, Lanes, concatenate
from opreplay.trace.kernels import capture_intervals
from opreplay.trace.nesting import NOTHING
from opreplay.trace.steps import parse_step
from opreplay.trace.timeline import Timeline

__all__ = ["GraphJoin", "join_graphs"]

_CAPTURE_SIZE = re.compile(r"capture_(\d+)")
_COPY_OR_FILL = re.compile(r"Memcpy|Memset", re.IGNORECASE)

_NOT_CAPTURED = "no captured graph launches these kernels in this order"
_NO_NAMES = (
    "the capture trace doesn't name the kernels of its launches (CUDA's profiler writes no names)"
)
_WHICH_SIZE = (
    "graphs captured for several batch sizes launch these kernels, and the step tells no size"
)


@dataclass(frozen=True, slots=True)
class GraphJoin:
    """How much of what graph launches ran is named by a captured call."""

    launches: int
    """Graph launches of the execution trace."""
    launched_us: float
    """Summed time of the kernels under them [microseconds]."""
    named_us: float
    """The part of it whose captured launch is known [microseconds]."""
    unknown: tuple[tuple[str, float], ...]
    """Why the rest is unknown, each reason with its time [microseconds], the largest first."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, and each reason for what was not."""
        share = 100 * self.named_us / self.launched_us if self.launched_us else 0.0
        return (
            f"{self.launches:,} graph launches ran {self.launched_us / 1000:,.3f} ms of kernels; "
            f"{share:.1f} % of it is named by captured calls, which have the kernels of one run of "
            "their graph.",
            *(f"Unknown are {time / 1000:,.3f} ms: {reason}." for reason, time in self.unknown),
        )


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured graph."""

    launches: IdArray
    """Rows of its launches, by time."""
    kernels: tuple[str, ...]
    """What they launch."""
    size: int | None
    """Batch size that the annotation around the capture tells."""


def join_graphs(capture: Timeline, execution: Timeline) -> tuple[Lanes, GraphJoin]:
    """Gives the launches of captured graphs the kernels that ran when the graphs were launched.

    A graph launch belongs to the captured graph with the same kernels in the same order. Where
    several graphs have them, the size of the step tells the capture, and inside one capture they
    are taken in turn: engines launch the graphs of the layers in the order of their capture. A
    graph that ran several times gives the kernels of the run with the median time.

    Args:
        capture: The trace in which the graphs were captured.
        execution: A trace in which they were launched.

    Returns:
        The lanes of the capture trace with the kernels added, and what they stand for.
    """
    graphs = _captured_graphs(capture)
    by_kernels: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, graph in enumerate(graphs):
        by_kernels[graph.kernels].append(index)
    named = any(kernel for graph in graphs for kernel in graph.kernels)
    sizes = sorted({graph.size for graph in graphs if graph.size is not None})
    gpu, links = execution.lanes.gpu, execution.launches
    runs: dict[int, list[IdArray]] = defaultdict(list)
    unknown: Counter[str] = Counter()
    before: dict[int, int] = {}  # graph that ran last, by step
    launches = np.flatnonzero(links.graph_launch)
    launches = launches[np.argsort(execution.lanes.launch.start[launches], kind="stable")]
    for launch, step in zip(launches, _steps(execution, launches), strict=True):
        rows = np.flatnonzero(links.launch == launch)
        rows = rows[np.argsort(gpu.start[rows], kind="stable")]
        fitting = by_kernels.get(tuple(_gpu_name(gpu.name(row)) for row in rows.tolist()), [])
        if len({graphs[index].size for index in fitting}) > 1:
            wanted = _padded_size(execution, step, sizes)
            fitting = [index for index in fitting if wanted == graphs[index].size is not None]
            reason = _WHICH_SIZE
        else:
            reason = _NOT_CAPTURED if named else _NO_NAMES
        if not fitting:
            unknown[reason] += gpu.duration[rows].sum()
            continue
        last = before.get(step, -1)
        before[step] = next((index for index in fitting if index > last), fitting[0])
        runs[before[step]].append(rows)
    launched_us = float(gpu.duration[links.by_graph].sum())
    return _with_kernels(capture, execution, graphs, runs), GraphJoin(
        launches=len(launches),
        launched_us=launched_us,
        named_us=launched_us - sum(unknown.values()),
        unknown=tuple((reason, float(time)) for reason, time in unknown.most_common()),
    )


def _captured_graphs(capture: Timeline) -> list[_Graph]:
    """Returns the captured graphs that hold a launch, in the order of their capture."""
    launch = capture.lanes.launch
    names = [
        _launched_name(name, launch.examples.fields.get(number, {}))
        for number, name in enumerate(launch.examples.names)
    ]
    is_launch = launch.where(name is not None for name in names)
    scopes = capture.annotations.take(
        np.flatnonzero([bool(_size_of(name)) for name in _names_by_row(capture.annotations)])
    )
    graphs = []
    for thread, start, stop in sorted(capture_intervals(capture.lanes), key=lambda one: one[1]):
        rows = np.flatnonzero(
            is_launch & (launch.thread == thread) & (launch.start >= start) & (launch.start <= stop)
        )
        if not len(rows):
            continue
        rows = rows[np.argsort(launch.start[rows], kind="stable")]
        scope = enclosing_annotations(launch.take(rows[:1]), scopes)[0]
        graphs.append(
            _Graph(
                launches=rows,
                kernels=tuple(names[distinct] or "" for distinct in launch.distinct[rows]),
                size=None if scope == NOTHING else _size_of(scopes.name(scope)),
            )
        )
    return graphs


def _with_kernels(
    capture: Timeline,
    execution: Timeline,
    graphs: list[_Graph],
    runs: dict[int, list[IdArray]],
) -> Lanes:
    gpu, lanes = execution.lanes.gpu, capture.lanes
    rows, correlations = [], []
    for index, alternatives in runs.items():
        by_time = sorted(alternatives, key=lambda run: float(gpu.duration[run].sum()))
        rows.append(by_time[(len(by_time) - 1) // 2])
        correlations.append(lanes.launch.correlation[graphs[index].launches])
    if not rows:
        return lanes
    ran = replace(gpu.take(np.concatenate(rows)), correlation=np.concatenate(correlations))
    devices = execution.lanes.devices
    return replace(lanes, gpu=concatenate(lanes.gpu, ran), devices=devices)


def _steps(execution: Timeline, launches: IdArray) -> list[int]:
    """Returns the row of the annotation that tells the batch, by launch, or `NOTHING`."""
    annotations = execution.annotations
    telling = np.flatnonzero([parse_step(name) is not None for name in _names_by_row(annotations)])
    around = enclosing_annotations(execution.lanes.launch.take(launches), annotations.take(telling))
    return [NOTHING if row == NOTHING else int(telling[row]) for row in around]


def _padded_size(execution: Timeline, step: int, sizes: list[int]) -> int | None:
    """Returns the smallest captured size that holds the tokens of a step; None if unknown."""
    batch = None if step == NOTHING else parse_step(execution.annotations.name(step))
    if batch is None or batch.context.queries is None or batch.generation.queries is None:
        return None
    tokens = batch.context.queries + batch.generation.queries
    return next((size for size in sizes if size >= tokens), None)


def _names_by_row(events: Events) -> Iterable[str]:
    names = events.examples.names
    return [names[distinct] for distinct in events.distinct]


def _size_of(name: str) -> int | None:
    found = _CAPTURE_SIZE.match(name)
    return int(found[1]) if found else None


def _launched_name(name: str, fields: Mapping[str, Any]) -> str | None:
    """Returns what a runtime call launches, "" if it doesn't say, None if it launches nothing."""
    if isinstance(fields.get("kernel"), str):
        return str(fields["kernel"])
    if found := _COPY_OR_FILL.search(name):
        return found[0].capitalize()
    return "" if "LaunchKernel" in name else None


def _gpu_name(name: str) -> str:
    found = _COPY_OR_FILL.match(name)
    return found[0].capitalize() if found else name
