"""Events of a trace as columns: one table per lane, a row per event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opreplay.trace.arguments import fields_of, read_arguments
from opreplay.trace.call import RecordedArgument

__all__ = [
    "NO_ID",
    "BoolArray",
    "Events",
    "Examples",
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
class Examples:
    """What events of a lane that are alike share, by their number in `Events.distinct`."""

    names: tuple[str, ...]
    """Names."""
    arguments: tuple[tuple[RecordedArgument, ...] | None, ...]
    """Inputs in schema order; None where types or dims aren't recorded."""
    fields: Mapping[int, Mapping[str, Any]]
    """The ``args`` of those that hold more than that."""

    def __len__(self) -> int:
        """Number of events that are not alike."""
        return len(self.names)

    @staticmethod
    def of(events: Iterable[Mapping[str, Any]]) -> Examples:
        """Returns those of events of which no two are taken as alike."""
        events = list(events)
        return Examples(
            names=tuple(map(name_of, events)),
            arguments=tuple(map(read_arguments, events)),
            fields=dict(enumerate(map(fields_of, events))),
        )

    def __add__(self, others: Examples) -> Examples:
        """Returns these, and after them the others."""
        return Examples(
            names=self.names + others.names,
            arguments=self.arguments + others.arguments,
            fields={
                **self.fields,
                **{number + len(self): fields for number, fields in others.fields.items()},
            },
        )


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
    """Number in `examples`, the same for events with the same name and arguments."""
    examples: Examples
    """What alike events share."""

    @property
    def end(self) -> FloatArray:
        """End time."""
        return self.start + self.duration

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def name(self, row: int) -> str:
        """Name of the event in `row`."""
        return self.examples.names[int(self.distinct[row])]

    def where(self, held: Iterable[object]) -> BoolArray:
        """Returns for each event whether what is said of its example is true."""
        found: BoolArray = np.fromiter(map(bool, held), bool, len(self.examples))[self.distinct]
        return found

    def take(self, rows: IdArray) -> Events:
        """Returns the events of `rows`, in that order."""
        return replace(
            self,
            start=self.start[rows],
            duration=self.duration[rows],
            thread=self.thread[rows],
            external_id=self.external_id[rows],
            correlation=self.correlation[rows],
            distinct=self.distinct[rows],
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
