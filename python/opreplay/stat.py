"""What a measurement is asked for, and what it hands on; free of torch, so that rows are too."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Stat", "Timing", "TimingOptions"]


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How long and how exactly to measure a call."""

    time_s: float = 0.3
    """Warm-up and samples of a call together take at most this long [seconds]."""
    relative_error: float = 0.02
    """Stop once the 95 % interval of the median is this narrow on either side, relative to it."""
    min_samples: int = 20
    """No stop for the relative error before this many samples."""
    grad: bool = False
    """Record autograd; the default is inference mode."""
    cold: bool = True
    """Also time the call with its inputs out of cache."""
    cold_arguments: Literal["all", "weights"] = "all"
    """Which inputs those are: on an accelerator "weights" leaves all warm but the large ones that
    are only read. A CPU's caches are emptied as a whole."""
    warmup_ms: float | None = None
    """Calls run for this long before the first sample [milliseconds]; None means 200 on an
    accelerator, besides `time_s`, and on the CPU 2 of it."""
    profile_once: bool = False
    """Time nothing: make one warmed call inside a range for a profiler from outside."""
    raw: bool = False
    """Keep the samples, at most 1,000 of them."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not (self.time_s > 0 and math.isfinite(self.time_s)):
            raise ValueError(f"time_s must be a positive number of seconds, got {self.time_s = }")
        if not 0 < self.relative_error < 1:
            raise ValueError(f"relative_error must be in (0, 1), got {self.relative_error = }")
        if self.cold_arguments not in ("all", "weights"):
            raise ValueError(f"cold_arguments must be all or weights, got {self.cold_arguments!r}")
        if self.warmup_ms is not None and not (0 < self.warmup_ms < math.inf):
            raise ValueError(f"warmup_ms must be a positive number, got {self.warmup_ms = }")
        if self.min_samples < 2:
            raise ValueError(f"min_samples must be at least 2, got {self.min_samples = }")


@dataclass(frozen=True, slots=True)
class Stat:
    """A measured time; the unit is that of the field which holds it."""

    median: float
    """Median over the samples: the figure to quote."""
    mean: float
    """Arithmetic mean, for comparison with tools that report it."""
    min: float
    """Smallest sample."""
    p5: float
    """5th percentile."""
    p95: float
    """95th percentile."""
    iqr: float
    """Distance between the 25th and the 75th percentile."""
    samples: int
    """Number of samples."""
    discarded: int
    """Samples refused: zero or negative times; on a device also those under a throttled clock."""
    stop_reason: str
    """``relative_error``, ``time_limit`` or ``max_samples``."""
    floor: float
    """What an empty operator with as many arguments takes, the timer included; of device times,
    what an empty kernel takes on the same route."""
    at_floor: bool
    """True if the median is under three times the floor."""
    route: Literal["loop", "graph", "stream", "python"]
    """What made the calls."""
    raw: list[float] | None
    """The samples in the order taken, if they were asked for; at most 1,000."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The four numbers of a call, and the verdict."""

    host_ns: Stat
    """What one call costs the CPU; on the CPU, the warm time of the call [nanoseconds]."""
    hot_us: Stat | None
    """Device time of a call, back to back; None on the CPU [microseconds]."""
    cold_us: Stat | None
    """Time with the inputs out of cache [microseconds]."""
    latency_us: Stat | None
    """Idle stream, launch, completion; None on the CPU [microseconds]."""
    launch_bound: bool | None
    """True if issuing costs more than the device takes; None on the CPU."""
    graph_gain: float | None
    """What a graph would save: max(host, hot) / hot; None on the CPU."""
    gbps: float | None
    """Argument bytes over the warm time [gigabytes per second]."""
    notes: tuple[str, ...] = ()
    """What else a reader of the numbers must know."""

    def to_json(self) -> dict[str, Any]:
        """The form that stands in a result row."""
        fields = asdict(self)
        del fields["notes"]
        return fields
