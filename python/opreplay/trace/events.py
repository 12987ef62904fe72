"""Events of a trace as columns: one table per lane, a row per event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "NO_ID",
    "BoolArray",
    "Events",
    "FloatArray",
    "IdArray",
    "Lanes",
    "concatenate",
    "name_of",
]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.int64]

NO_ID = -1
"""Stands for an id that the event doesn't carry."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one lane, a row each. Times are microseconds of the trace's clock."""

    start: FloatArray
    """Start time."""
    duration: FloatArray
    """Duration, never negative."""
    thread: IdArray
    """Index in `Lanes.threads`."""
    external_id: IdArray
    """The profiler's id of the operator, `NO_ID` where there is none."""
    correlation: IdArray
    """Number that a launch shares with what it launched, `NO_ID` where there is none."""
    distinct: IdArray
    """Index in `examples` of an event with the same name and signature fields."""
    examples: tuple[Mapping[str, Any], ...]
    """One event per name and signature: its name and arguments are those of all its likes."""

    @property
    def end(self) -> FloatArray:
        """End time."""
        return self.start + self.duration

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def name(self, row: int) -> str:
        """Name of the event in `row`."""
        return name_of(self.examples[self.distinct[row]])

    def names(self) -> list[str]:
        """Names by index of `examples`."""
        names = [example.get("name", "") for example in self.examples]
        return names if set(map(type, names)) <= {str} else list(map(name_of, self.examples))

    def take(self, rows: IdArray) -> Events:
        """Returns the events of `rows`, in that order."""
        return Events(
            start=self.start[rows],
            duration=self.duration[rows],
            thread=self.thread[rows],
            external_id=self.external_id[rows],
            correlation=self.correlation[rows],
            distinct=self.distinct[rows],
            examples=self.examples,
        )


@dataclass(frozen=True, slots=True)
class Lanes:
    """All events that this package reads, by lane."""

    op: Events
    """CPU events: operators, and ranges that the profiler puts among them."""
    launch: Events
    """Calls of the GPU's runtime and driver."""
    gpu: Events
    """Kernels, copies and fills on the GPU."""
    annotation: Events
    """Ranges that the user or the engine named."""
    threads: tuple[str, ...]
    """Thread ids as text; the same id in two processes stands twice."""
    rank: tuple[str, ...] = ()
    """Rank of each thread where the trace is of several; else empty."""
    devices: tuple[str, ...] = ()
    """Names of the accelerators, as far as the trace tells them."""
    untimed: bool = False
    """True for an Execution Trace: times only tell order and nesting."""


def concatenate(first: Events, second: Events) -> Events:
    """Returns the events of both, those of `first` before those of `second`."""
    return Events(
        start=np.concatenate([first.start, second.start]),
        duration=np.concatenate([first.duration, second.duration]),
        thread=np.concatenate([first.thread, second.thread]),
        external_id=np.concatenate([first.external_id, second.external_id]),
        correlation=np.concatenate([first.correlation, second.correlation]),
        distinct=np.concatenate([first.distinct, second.distinct + len(first.examples)]),
        examples=first.examples + second.examples,
    )


def name_of(event: Mapping[str, Any]) -> str:
    """Returns the name of an event as text."""
    name = event.get("name", "")
    return name if isinstance(name, str) else str(name)
