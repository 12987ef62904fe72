"""What a trace hands on: recorded calls, grouped by signature, and calls that cannot go on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import orjson

from opreplay.trace.steps import Step

__all__ = [
    "REASONS",
    "CallGroup",
    "CallSequence",
    "Point",
    "Reason",
    "RecordedArgument",
    "RecordedCall",
    "RecordedTimes",
    "Skipped",
    "signature_of",
    "text_of",
]

Dims = tuple[int, ...] | tuple[tuple[int, ...], ...]

Reason = Literal[
    "metadata_missing",
    "operator_unresolved",
    "schema_mismatch",
    "argument_lost",
    "needs_engine_context",
    "not_an_operator",
    "collective",
    "backend_missing",
    "over_memory_budget",
    "failed",
    "crashed",
    "timed_out",
    "recipe_failed",
]
"""The closed list of reasons why a call has no timing."""

REASONS: tuple[Reason, ...] = (
    "metadata_missing",
    "operator_unresolved",
    "schema_mismatch",
    "argument_lost",
    "needs_engine_context",
    "not_an_operator",
    "collective",
    "backend_missing",
    "over_memory_budget",
    "failed",
    "crashed",
    "timed_out",
    "recipe_failed",
)


@dataclass(frozen=True, slots=True)
class RecordedArgument:
    """One input of a call as the profiler wrote it."""

    type: str
    """The profiler's type name (``"float"``, ``"Scalar"``, ``"TensorList"``); ``""`` if dropped."""
    dims: Dims
    """Sizes of a tensor; one tuple of sizes per element for a ``TensorList``; else empty."""
    strides: Dims | None
    """Strides in elements, shaped like ``dims``; None where the trace records no strides."""
    value: str | None
    """Text of a scalar or scalar list; ``""`` if dropped; None where no values are recorded."""
    storage: tuple[int, int] | None = None
    """Number within the call of a storage that several tensors share, and the tensor's offset in
    it [elements]; None for a tensor that has its own, or where the trace doesn't say."""
    elements: tuple[str, ...] | None = None
    """Type name of each element of a ``TensorList``, ``"None"`` for an undefined one; None where
    the trace records none."""
    contents: tuple[tuple[int, ...] | None, ...] | None = None
    """Elements of the tensor, or of each tensor of a list, where `record` kept them; no part of
    what tells calls apart."""
    recovered: bool = False
    """True if the profiler dropped it, and what ran inside the call tells it; no part of what
    tells calls apart."""
    true_elements: int | None = None
    """Number of true elements of the mask in a list, where the trace tells it."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One operator call of a trace."""

    name: str
    """Operator name as recorded, for instance ``"aten::mm"``; carries no overload."""
    arguments: tuple[RecordedArgument, ...] | None
    """Inputs in schema order; None where the trace records no types or no dims for this call."""
    start_us: float
    """Start of the CPU event [microseconds since the trace's own origin]."""
    duration_us: float
    """Duration of the CPU event, children included [microseconds]."""
    self_us: float
    """Duration of the CPU event without its child operators [microseconds]."""
    thread: str
    """Thread id, as text."""
    external_id: int | None
    """The profiler's id for this call."""
    step: str | None
    """Name of the innermost enclosing user annotation."""
    parent: str | None
    """Name of the innermost enclosing operator on the same thread; None for an outermost call."""
    leaf: bool
    """True if no other operator ran inside this call."""
    kernels: tuple[str, ...]
    """Names of the GPU kernels launched inside, child operators included, by start time."""
    device_us: float | None
    """Span from the start of the first to the end of the last of those kernels [microseconds]."""
    device_self_us: float | None
    """The share of the kernels' time whose innermost operator is this call [microseconds]."""
    in_graph: bool
    """True if the call ran while a GPU graph was being captured."""
    batch: Step | None = None
    """What the engine wrote about the batch of the step; None where it wrote nothing."""
    rank: str | None = None
    """Rank that made the call; None where the trace is of one process."""
    overload: str | None = None
    """Name of the overload, ``""`` for the default one; None where the trace doesn't say."""


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """Recorded times of a group of identical calls [microseconds]."""

    median: float
    """Median over the calls."""
    total: float
    """Sum over the calls."""
    self_total: float
    """Sum over the calls of the time that no child operator owns."""


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Identical calls of a trace: same operator, types, dims, strides and values.

    Calls of an operator whose values depend on the step are a group for each step or phase.
    """

    call: RecordedCall
    """The call with the median recorded time."""
    count: int
    """Number of calls in the group."""
    host: RecordedTimes
    """Times of the CPU events."""
    device: RecordedTimes | None
    """Spans of the kernels launched inside; None where none were."""
    kernels: tuple[tuple[str, int], ...]
    """Name and number of the kernels launched by one call (the median call)."""
    in_graph: bool
    """True if any call of the group ran under graph capture."""
    batch: Step | None
    """Batch of the step that `call` ran in; None where its values do not depend on the step."""
    unrecorded: str | None
    """Set where the trace lacks types or dims for the call: one sentence, with the flag to set."""

    @property
    def signature(self) -> str:
        """Stable hash of the call, equal on every machine; see `signature_of`."""
        return signature_of(self.call.name, self.call.arguments)


@dataclass(frozen=True, slots=True)
class CallSequence:
    """Calls of a trace in recorded order, to be run as one: a decode layer, for instance."""

    calls: tuple[RecordedCall, ...]
    """The calls, by start time."""
    count: int = 1
    """How often it stands for itself."""
    batch: Step | None = None
    """Its calls may be of several steps."""

    @property
    def name(self) -> str:
        """What stands for the operator's name."""
        return f"{len(self.calls)} calls in recorded order"

    @property
    def signature(self) -> str:
        """Stable hash of the signatures of the calls in their order."""
        each = [signature_of(call.name, call.arguments) for call in self.calls]
        return hashlib.sha256("".join(each).encode()).hexdigest()[:16]

    @property
    def host(self) -> RecordedTimes:
        """Sum of the CPU events."""
        total = sum(call.duration_us for call in self.calls)
        return RecordedTimes(total, total, sum(call.self_us for call in self.calls))

    @property
    def device(self) -> RecordedTimes | None:
        """Sum of the spans of the kernels launched inside; None where none were."""
        spans = [call.device_us for call in self.calls if call.device_us is not None]
        own = [call.device_self_us for call in self.calls if call.device_self_us is not None]
        return RecordedTimes(sum(spans), sum(spans), sum(own)) if spans else None

    @property
    def in_graph(self) -> bool:
        """True if any of the calls ran under graph capture."""
        return any(call.in_graph for call in self.calls)

    @property
    def kernels(self) -> tuple[tuple[str, int], ...]:
        """Name and number of the kernels launched inside."""
        return tuple(Counter(name for call in self.calls for name in call.kernels).items())


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep: what was set of a recorded call."""

    call: str
    """Signature of the recorded call."""
    settings: tuple[tuple[str, str], ...]
    """Name and value of what was set, in the order given."""

    def __str__(self) -> str:
        """The settings as the user wrote them."""
        return " ".join(f"{name}={value}" for name, value in self.settings)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call that cannot go on, and why."""

    reason: Reason
    """One of the closed list of reasons."""
    detail: str
    """One sentence for the user: what is missing, and the remedy where there is one."""


def signature_of(name: str, arguments: tuple[RecordedArgument, ...] | None) -> str:
    """Returns 16 hex digits that name a call by operator, types, dims, strides and values."""
    inputs = b"null" if arguments is None else b"[%b]" % b",".join(map(text_of, arguments))
    return hashlib.sha256(b"[%b,%b]" % (_json(name), inputs)).hexdigest()[:16]


def text_of(argument: RecordedArgument) -> bytes:
    """Returns what of an argument tells calls apart, as JSON."""
    return _json(_telling(argument))


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, or integers over 64 bits
        return json.dumps(value, separators=(",", ":")).encode()


def _telling(argument: RecordedArgument) -> tuple[object, ...]:
    if argument.recovered:
        return ("", (), None if argument.strides is None else (), argument.value)
    fields = (argument.type, argument.dims, argument.strides, argument.value)
    if argument.storage is None and argument.elements is None:
        return fields
    return (*fields, argument.storage, argument.elements)
