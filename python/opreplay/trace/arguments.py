"""Arguments of a recorded call: the fields of one event come in, typed arguments go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from opreplay.trace.call import Dims, RecordedArgument
from opreplay.trace.execution_arguments import read_execution_arguments
from opreplay.trace.kept_values import with_values

__all__ = [
    "LISTS",
    "argument_of_cell",
    "fields_of",
    "overload_of",
    "read_arguments",
    "unrecorded_sentence",
]

_TYPES = "Input type"
_DIMS = "Input Dims"
_OLD_DIMS = "Input dims"
_STRIDES = "Input Strides"
_VALUES = "Concrete Inputs"

LISTS = (_TYPES, _DIMS, _STRIDES, _VALUES)
"""Fields of an event that are lists with an element for each argument."""

_argument = lru_cache(maxsize=1 << 14)(RecordedArgument)
"""One object for all arguments that are alike: of ten in a trace, nine are."""


def read_arguments(event: Mapping[str, Any]) -> tuple[RecordedArgument, ...] | None:
    """Returns the inputs of the call in schema order; None where types or dims aren't recorded.

    The profiler writes four parallel lists. Where one is shorter than another, the arguments
    beyond its end have type ``""``, no dims, no strides and value ``""``, which is what the
    profiler writes for a value that it drops.
    """
    fields = fields_of(event)
    if "execution_inputs" in fields:
        return read_execution_arguments(fields["execution_inputs"])
    types, dims = _list(fields, _TYPES), _list(fields, _DIMS)
    if types is None or dims is None:
        return None
    strides, values = _list(fields, _STRIDES), _list(fields, _VALUES)
    count = max(len(types), len(dims), len(strides or ()), len(values or ()))
    try:
        columns: tuple[Iterable[Any], ...] = (
            _texts(types, count),
            _all_sizes(dims, count),
            repeat(None, count) if strides is None else _all_sizes(strides, count),
            repeat(None, count) if values is None else _texts(values, count),
        )
        return with_values(tuple(map(_argument, *columns)), fields)
    except TypeError:
        return None


def argument_of_cell(type: Any, dims: Any, strides: Any, value: Any) -> RecordedArgument | None:
    """Returns the argument that the four `LISTS` hold at one place, None for a list not there.

    None stands for what only `read_arguments` can read.
    """
    if not isinstance(type, str) or not isinstance(value, str | None):
        return None
    try:
        return _argument(type, _sizes(dims), None if strides is None else _sizes(strides), value)
    except TypeError:
        return None


def unrecorded_sentence(fields: Mapping[str, Any]) -> str:
    """Says what the fields of an event lack, whose arguments can't be read."""
    if "execution_inputs" in fields:
        return "the Execution Trace's values, shapes and types of this call do not fit together"
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


def overload_of(fields: Mapping[str, Any]) -> str | None:
    """Returns the overload that an Execution Trace names; None for other traces."""
    overload = fields.get("overload")
    return overload if isinstance(overload, str) else None


def fields_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the ``args`` of an event."""
    fields = event.get("args")
    return fields if isinstance(fields, dict) else {}


def _list(fields: Mapping[str, Any], key: str) -> list[Any] | None:
    value = fields.get(key)
    return value if isinstance(value, list) else None


def _texts(entries: list[Any], count: int) -> list[str]:
    """Returns each entry as text, and ``""`` for those that are lacking."""
    padded = _padded(entries, "", count)
    return padded if set(map(type, padded)) <= {str} else list(map(_text, padded))


def _all_sizes(entries: list[Any], count: int) -> list[Dims]:
    """Returns the sizes of each entry, none for those that are lacking.

    Raises:
        TypeError: An entry is neither sizes nor lists of sizes.
    """
    padded = _padded(entries, [], count)
    # Nearly every call has tensors only, which take no look at each entry.
    if set(map(type, padded)) <= {list} and set(map(type, chain.from_iterable(padded))) <= {int}:
        return list(map(tuple, padded))
    return list(map(_sizes, padded))


def _padded(entries: list[Any], lacking: Any, count: int) -> list[Any]:
    return entries if len(entries) == count else entries + [lacking] * (count - len(entries))


def _text(entry: Any) -> str:
    return entry if isinstance(entry, str) else "" if entry is None else str(entry)


def _sizes(entry: Any) -> Dims:
    """Returns sizes, or one tuple of sizes per element.

    Raises:
        TypeError: The entry is neither.
    """
    if entry == []:
        return ()
    kinds = set(map(type, entry))
    if kinds == {int}:
        return tuple(entry)
    if kinds == {list} and all(set(map(type, sizes)) <= {int} for sizes in entry):
        return tuple(map(tuple, entry))
    raise TypeError(f"expected sizes, or lists of sizes, got {entry!r}")
