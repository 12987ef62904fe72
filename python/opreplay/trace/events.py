"""Kineto events as columns: a list of JSON events comes in, one table per lane goes out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

__all__ = [
    "NO_ID",
    "BoolArray",
    "Events",
    "FloatArray",
    "IdArray",
    "Lane",
    "Lanes",
    "name_of",
    "read_lanes",
]

Lane = Literal["op", "launch", "gpu", "annotation"]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.int64]

NO_ID = -1
"""Stands for an id that the event doesn't carry."""

_LANE_OF_CATEGORY: Mapping[str, Lane] = MappingProxyType(
    {
        "cpu_op": "op",
        "Operator": "op",
        "cuda_runtime": "launch",
        "cuda_driver": "launch",
        "privateuse1_runtime": "launch",
        "privateuse1_driver": "launch",
        "xpu_runtime": "launch",
        "mtia_runtime": "launch",
        "Runtime": "launch",
        "kernel": "gpu",
        "gpu_memcpy": "gpu",
        "gpu_memset": "gpu",
        "Kernel": "gpu",
        "Memcpy": "gpu",
        "Memset": "gpu",
        "user_annotation": "annotation",
    }
)
"""Categories of today's Kineto and of its first releases (capitalised)."""

_SIGNATURE_FIELDS = (
    "Input type",
    "Input Dims",
    "Input dims",
    "Input Strides",
    "Concrete Inputs",
    "kernel_backend",
)
"""Fields of an operator's event that tell calls apart."""

_LARGEST_ID = np.iinfo(np.int64).max


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
        return [name_of(example) for example in self.examples]

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


def name_of(event: Mapping[str, Any]) -> str:
    """Returns the name of an event as text."""
    name = event.get("name", "")
    return name if isinstance(name, str) else str(name)


def read_lanes(events: Iterable[dict[str, Any]]) -> Lanes:
    """Sorts complete events into lanes; other events, and those without a time, are left out."""
    threads: dict[tuple[str, str], int] = {}
    columns: dict[Lane, _Columns] = {lane: _Columns() for lane in _LANE_OF_CATEGORY.values()}
    for event in events:
        category = event.get("cat")
        lane = _LANE_OF_CATEGORY.get(category) if isinstance(category, str) else None
        if lane is None or event.get("ph") != "X":
            continue
        start, duration = _number(event.get("ts")), _number(event.get("dur", 0))
        if start is None or duration is None:
            continue
        thread = (str(event.get("pid")), str(event.get("tid")))
        columns[lane].append(
            event, start, max(duration, 0.0), threads.setdefault(thread, len(threads))
        )
    return Lanes(
        op=columns["op"].table(),
        launch=columns["launch"].table(),
        gpu=columns["gpu"].table(),
        annotation=columns["annotation"].table(),
        threads=tuple(tid for _, tid in threads),
    )


@dataclass(slots=True)
class _Columns:
    start: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    external_id: list[int] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    index: dict[bytes, int] = field(default_factory=dict)

    def append(self, event: dict[str, Any], start: float, duration: float, thread: int) -> None:
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        self.start.append(start)
        self.duration.append(duration)
        self.thread.append(thread)
        self.external_id.append(_id(arguments.get("External id", arguments.get("external id"))))
        self.correlation.append(_id(arguments.get("correlation")))
        fields = [arguments.get(key) for key in _SIGNATURE_FIELDS]
        key = orjson.dumps([name_of(event), fields], default=repr)
        distinct = self.index.setdefault(key, len(self.examples))
        if distinct == len(self.examples):
            self.examples.append(event)
        self.distinct.append(distinct)

    def table(self) -> Events:
        return Events(
            start=np.array(self.start, np.float64),
            duration=np.array(self.duration, np.float64),
            thread=np.array(self.thread, np.int64),
            external_id=np.array(self.external_id, np.int64),
            correlation=np.array(self.correlation, np.int64),
            distinct=np.array(self.distinct, np.int64),
            examples=tuple(self.examples),
        )


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _id(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NO_ID
    return number if 0 <= number <= _LARGEST_ID else NO_ID
