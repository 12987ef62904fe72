"""Where the time of a trace went: a timeline comes in, one share per cause goes out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from opreplay.trace.events import BoolArray, Events, FloatArray, IdArray
from opreplay.trace.kinds import Kind
from opreplay.trace.nesting import NOTHING
from opreplay.trace.timeline import Timeline

__all__ = ["CAUSES", "Breakdown", "Cause", "RankShare", "Share", "break_down", "rank_shares"]

Cause = Literal[
    "operators",
    "graph_launches",
    "triton",
    "compiled_regions",
    "engine_context",
    "collectives",
    "autograd",
    "ranges",
    "outside_operators",
    "no_launch_record",
]
"""What time went to: calls that can be replayed, and what stands beside them."""

CAUSES: tuple[Cause, ...] = (
    "operators",
    "graph_launches",
    "triton",
    "compiled_regions",
    "engine_context",
    "collectives",
    "autograd",
    "ranges",
    "outside_operators",
    "no_launch_record",
)

_CAUSE_OF_KIND: dict[Kind, Cause] = {
    "operator": "operators",
    "engine_context": "engine_context",
    "collective": "collectives",
    "triton": "triton",
    "compiled_region": "compiled_regions",
    "autograd": "autograd",
    "range": "ranges",
}

_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|cross_device_reduce|multimem", re.IGNORECASE)

_RECORD_CAPTURE = (
    "Graph launches hold {share:.0f} % of the GPU time, and the profiler records no operators "
    "inside them: record the capture as well (start torch.profiler with record_shapes=True before "
    "the engine captures its graphs), and replay the operators of that capture trace, with this "
    "one as --graph-launches."
)


@dataclass(frozen=True, slots=True)
class Share:
    """What one cause took."""

    cause: Cause
    """The cause."""
    count: int
    """CPU events, or launches for `graph_launches` and `outside_operators`, or GPU events for
    `no_launch_record`."""
    host_self_us: float
    """CPU time without operators and graph launches inside [microseconds]."""
    device_us: float
    """Summed time of GPU events [microseconds]."""
    kernels: int
    """Number of GPU events."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a trace went; each GPU event and each CPU microsecond counts once."""

    shares: tuple[Share, ...]
    """Causes that occur, in the order of `CAUSES`."""
    captured_calls: int
    """Replayable calls that ran while a graph was captured, so that they have no kernels."""
    advice: tuple[str, ...]
    """What to record to see more, a sentence each."""

    @property
    def host_us(self) -> float:
        """CPU time of all shares [microseconds]."""
        return sum(share.host_self_us for share in self.shares)

    @property
    def device_us(self) -> float:
        """GPU time of all shares [microseconds]."""
        return sum(share.device_us for share in self.shares)


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank of a trace of several took."""

    rank: str
    """Its number, or the name of its file."""
    calls: int
    """CPU events."""
    host_self_us: float
    """CPU time of the operators [microseconds]."""
    gpu_events: int
    """GPU events."""
    device_us: float
    """Summed time of GPU events [microseconds]."""


def rank_shares(timeline: Timeline) -> tuple[RankShare, ...]:
    """Returns the share of each rank; none for a trace of one process."""
    lanes = timeline.lanes
    if not lanes.rank:
        return ()
    ranks = list(dict.fromkeys(lanes.rank))
    number = np.array([ranks.index(rank) for rank in lanes.rank], np.int64)
    op, gpu = number[lanes.op.thread], number[lanes.gpu.thread]
    count = len(ranks)
    columns = (
        np.bincount(op, minlength=count),
        np.bincount(op, timeline.host_self, count),
        np.bincount(gpu, minlength=count),
        np.bincount(gpu, lanes.gpu.duration, count),
    )
    return tuple(
        RankShare(*values)
        for values in zip(ranks, *(column.tolist() for column in columns), strict=True)
    )


def break_down(timeline: Timeline) -> Breakdown:
    """Returns where the time of the trace went."""
    gpu_cause = _gpu_causes(timeline)
    op_cause = _index_of_kinds(timeline)[timeline.lanes.op.distinct]
    host = _bincount(op_cause, _host_without_graphs(timeline))
    count = np.bincount(op_cause, minlength=len(CAUSES))
    launch, launches = timeline.lanes.launch, timeline.launches
    graph, outside, unknown = (
        CAUSES.index(cause) for cause in ("graph_launches", "outside_operators", "no_launch_record")
    )
    host[graph] = launch.duration[launches.graph_launch].sum()
    count[graph] = launches.graph_launch.sum()
    alone = np.unique(launches.launch[gpu_cause == outside])
    host[outside] = launch.duration[alone].sum()
    count[outside] = len(alone)
    kernels = np.bincount(gpu_cause, minlength=len(CAUSES))
    count[unknown] = kernels[unknown]
    device = _bincount(gpu_cause, timeline.lanes.gpu.duration)
    shares = tuple(
        Share(cause, int(count[i]), float(host[i]), float(device[i]), int(kernels[i]))
        for i, cause in enumerate(CAUSES)
        if count[i] or kernels[i]
    )
    advice: tuple[str, ...] = ()
    if device[graph] > 0:
        advice = (_RECORD_CAPTURE.format(share=100 * device[graph] / device.sum()),)
    return Breakdown(
        shares=shares,
        captured_calls=int((timeline.in_graph & (op_cause == 0)).sum()),
        advice=advice,
    )


def _index_of_kinds(timeline: Timeline) -> IdArray:
    """Returns the cause's place in `CAUSES` by distinct operator event."""
    return np.array([CAUSES.index(_CAUSE_OF_KIND[kind]) for kind in timeline.kinds], np.int64)


def _gpu_causes(timeline: Timeline) -> IdArray:
    """Returns the cause's place in `CAUSES` by GPU event."""
    launches, gpu = timeline.launches, timeline.lanes.gpu
    cause = np.full(len(gpu), CAUSES.index("outside_operators"), np.int64)
    cause[(launches.launch == NOTHING) & (launches.owner == NOTHING)] = CAUSES.index(
        "no_launch_record"
    )
    owned = np.flatnonzero(launches.owner != NOTHING)
    owners = timeline.lanes.op.distinct[launches.owner[owned]]
    cause[owned] = _index_of_kinds(timeline)[owners]
    cause[_collective_kernels(gpu)] = CAUSES.index("collectives")
    cause[launches.by_graph] = CAUSES.index("graph_launches")
    return cause


def _collective_kernels(gpu: Events) -> BoolArray:
    return gpu.where(_COLLECTIVE_KERNEL.search(name) for name in gpu.examples.names)


def _host_without_graphs(timeline: Timeline) -> FloatArray:
    """Returns each operator's own time without the graph launches that it made."""
    launches = timeline.launches
    inside = launches.graph_launch & (launches.launch_owner != NOTHING)
    spent = np.bincount(
        launches.launch_owner[inside],
        timeline.lanes.launch.duration[inside],
        len(timeline.host_self),
    )
    return np.maximum(timeline.host_self - spent, 0.0)


def _bincount(index: IdArray, values: FloatArray) -> FloatArray:
    return np.bincount(index, values, len(CAUSES)).astype(np.float64)
