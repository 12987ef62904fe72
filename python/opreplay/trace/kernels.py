"""Which operator launched which kernel: lanes come in, an owner per GPU event goes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opreplay.trace.events import NO_ID, BoolArray, Events, FloatArray, IdArray, Lanes
from opreplay.trace.nesting import NOTHING, Nest

__all__ = ["Launches", "capture_intervals", "captured", "link", "pick"]

_GRAPH_LAUNCH = "GraphLaunch"
_BEGIN_CAPTURE = "StreamBeginCapture"
_END_CAPTURE = "StreamEndCapture"
"""Parts of runtime calls' names: the vendors differ in prefix (cuda, hip, cu) and suffix (_v2)."""


@dataclass(frozen=True, slots=True)
class Launches:
    """GPU events by the operator that launched them."""

    launch: IdArray
    """Row of `Lanes.launch` by GPU event; `NOTHING` where the trace holds no launch record."""
    owner: IdArray
    """Row of the innermost operator by GPU event; `NOTHING` where none launched it."""
    by_graph: BoolArray
    """True by GPU event where a graph launch started it."""
    launch_owner: IdArray
    """Row of the innermost operator by launch."""
    graph_launch: BoolArray
    """True by launch where it launches a graph."""
    _gpu_by_owner: IdArray
    _owner_sorted: IdArray

    def of_subtrees(self, rows: IdArray, sizes: IdArray) -> tuple[IdArray, IdArray]:
        """Returns the GPU events launched by the `sizes` operators from each row on.

        Returns:
            The events of all rows, one row's after another's, and how many each row has.
        """
        low = np.searchsorted(self._owner_sorted, rows)
        counts = np.searchsorted(self._owner_sorted, rows + sizes) - low
        before = np.cumsum(counts) - counts
        places = np.repeat(low - before, counts) + np.arange(counts.sum())
        return self._gpu_by_owner[places], counts


def link(lanes: Lanes, tree: Nest) -> Launches:
    """Finds the owner of each GPU event.

    A GPU event belongs to the launch with its correlation number, and that launch to the
    innermost operator running on the launching thread at that time. An event without a launch
    belongs to the operator whose external id it carries.
    """
    launch = _matching(lanes.gpu.correlation, lanes.launch.correlation)
    launch_owner = tree.innermost(lanes.launch.thread, lanes.launch.start, lanes.launch.start)
    unlinked = launch == NOTHING
    owner = np.where(unlinked, NOTHING, pick(launch_owner, launch))
    # Some versions write the correlation number as the external id: that names no operator.
    external_id = np.where(
        unlinked & (lanes.gpu.external_id != lanes.gpu.correlation), lanes.gpu.external_id, NO_ID
    )
    by_id = _matching(external_id, lanes.op.external_id)
    # Hand-made traces link launch and GPU event by external id alone.
    by_launch_id = _matching(
        np.where(by_id == NOTHING, external_id, NO_ID),
        np.where(lanes.launch.correlation == NO_ID, lanes.launch.external_id, NO_ID),
    )
    launch = np.where(unlinked, by_launch_id, launch)
    owner = np.where(unlinked, np.where(by_id != NOTHING, by_id, pick(launch_owner, launch)), owner)
    graph_launch = _named(lanes.launch, _GRAPH_LAUNCH)
    order = np.lexsort((lanes.gpu.start, owner))
    return Launches(
        launch=launch,
        owner=owner,
        by_graph=np.isin(launch, np.flatnonzero(graph_launch)),
        launch_owner=launch_owner,
        graph_launch=graph_launch,
        _gpu_by_owner=order.astype(np.int64),
        _owner_sorted=owner[order],
    )


def captured(lanes: Lanes) -> BoolArray:
    """Tells by operator whether it started while its thread was capturing a GPU graph."""
    inside = np.zeros(len(lanes.op), bool)
    for thread, start, stop in capture_intervals(lanes):
        inside |= (lanes.op.thread == thread) & (lanes.op.start >= start) & (lanes.op.start <= stop)
    return inside


def capture_intervals(lanes: Lanes) -> list[tuple[int, float, float]]:
    """Returns thread, start and end of each capture of a GPU graph.

    Without a record of the runtime's capture calls, an annotation ``capture_*`` stands for them.
    """
    begin = np.flatnonzero(_named(lanes.launch, _BEGIN_CAPTURE))
    if len(begin):
        thread, start = lanes.launch.thread[begin], lanes.launch.start[begin]
        stop = _first_after(lanes.launch, _named(lanes.launch, _END_CAPTURE), thread, start)
    else:
        names = lanes.annotation.examples.names
        wanted = lanes.annotation.where(name.startswith("capture_") for name in names)
        scopes = lanes.annotation.take(np.flatnonzero(wanted))
        thread, start, stop = scopes.thread, scopes.start, scopes.end
    return list(zip(thread.tolist(), start.tolist(), stop.tolist(), strict=True))


def _first_after(
    events: Events, wanted: BoolArray, thread: IdArray, time: FloatArray
) -> FloatArray:
    """Returns the start of the first `wanted` event after each time on its thread, or infinity."""
    first = [
        np.min(events.start[wanted & (events.thread == t) & (events.start >= s)], initial=np.inf)
        for t, s in zip(thread, time, strict=True)
    ]
    return np.array(first, np.float64)


def _named(events: Events, part: str) -> BoolArray:
    """Tells by event whether its name holds `part`."""
    return events.where(part in name for name in events.examples.names)


def _matching(wanted: IdArray, keys: IdArray) -> IdArray:
    """Returns for each id of `wanted` the first row of `keys` that holds it, or `NOTHING`."""
    found = np.full(len(wanted), NOTHING, np.int64)
    asking, known = np.flatnonzero(wanted != NO_ID), np.flatnonzero(keys != NO_ID)
    if not len(asking) or not len(known):
        return found
    order = known[np.argsort(keys[known], kind="stable")]
    at = np.searchsorted(keys[order], wanted[asking])
    row = order[np.minimum(at, len(order) - 1)]
    found[asking] = np.where(keys[row] == wanted[asking], row, NOTHING)
    return found


def pick(values: IdArray, row: IdArray) -> IdArray:
    """Returns `values[row]`, and `NOTHING` where `row` is `NOTHING`."""
    picked = np.full(len(row), NOTHING, np.int64)
    found = np.flatnonzero(row != NOTHING)
    picked[found] = values[row[found]]
    return picked
