"""Arguments of a recorded call: the fields of one event come in, typed arguments go out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opreplay.trace.call import Dims, RecordedArgument

__all__ = ["read_arguments", "unrecorded_sentence"]

_TYPES = "Input type"
_DIMS = "Input Dims"
_OLD_DIMS = "Input dims"
_STRIDES = "Input Strides"
_VALUES = "Concrete Inputs"


def read_arguments(event: Mapping[str, Any]) -> tuple[RecordedArgument, ...] | None:
    """Returns the inputs of the call in schema order; None where types or dims aren't recorded.

    The profiler writes four parallel lists. Where one is shorter than another, the arguments
    beyond its end have type ``""``, no dims, no strides and value ``""``, which is what the
    profiler writes for a value that it drops.
    """
    fields = _fields(event)
    types, dims = _list(fields, _TYPES), _list(fields, _DIMS)
    if types is None or dims is None:
        return None
    strides, values = _list(fields, _STRIDES), _list(fields, _VALUES)
    count = max(len(types), len(dims), len(strides or ()), len(values or ()))
    arguments = []
    for position in range(count):
        kind = _text(types, position)
        sizes = _sizes(dims, position)
        steps = None if strides is None else _sizes(strides, position)
        if sizes is None or (strides is not None and steps is None):
            return None
        value = None if values is None else _text(values, position)
        arguments.append(RecordedArgument(type=kind, dims=sizes, strides=steps, value=value))
    return tuple(arguments)


def unrecorded_sentence(event: Mapping[str, Any]) -> str | None:
    """Says what the event lacks so that its arguments can't be read; None if they can."""
    if read_arguments(event) is not None:
        return None
    fields = _fields(event)
    if _list(fields, _TYPES) is not None and _list(fields, _DIMS) is not None:
        return "the trace's sizes or strides of this call are no lists of integers"
    if isinstance(fields.get(_OLD_DIMS), list) or _list(fields, _DIMS) is not None:
        return (
            "the trace records the dims of this call, but not its types; record it with torch "
            "1.9 or newer and torch.profiler.profile(record_shapes=True)"
        )
    return (
        "the trace records no types and no dims for this call; record it with "
        "torch.profiler.profile(record_shapes=True)"
    )


def _fields(event: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = event.get("args")
    return fields if isinstance(fields, dict) else {}


def _list(fields: Mapping[str, Any], key: str) -> list[Any] | None:
    value = fields.get(key)
    return value if isinstance(value, list) else None


def _text(entries: list[Any], position: int) -> str:
    entry = entries[position] if position < len(entries) else ""
    return entry if isinstance(entry, str) else "" if entry is None else str(entry)


def _sizes(entries: list[Any], position: int) -> Dims | None:
    """Returns sizes, or one tuple of sizes per element; None where the entry is neither."""
    entry = entries[position] if position < len(entries) else []
    if not isinstance(entry, list):
        return None
    if all(_is_size(size) for size in entry):
        return tuple(entry)
    if all(isinstance(sizes, list) and all(map(_is_size, sizes)) for sizes in entry):
        return tuple(tuple(sizes) for sizes in entry)
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
