"""Values of tensors in a trace: `record` puts them into the events, reading takes them out."""

from __future__ import annotations

import gzip
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from opreplay.trace.call import RecordedArgument

__all__ = ["KEY", "KeptArgument", "KeptTensor", "add_values", "with_values"]

logger = logging.getLogger(__name__)

KEY = "opreplay values"
"""Field of an event: by place of an argument, ``{"list": bool, "tensors": [TENSOR]}``, a TENSOR
being ``{"type", "sizes", "values"}``, values null where they were not kept."""


class KeptTensor(Protocol):
    """A tensor that a call got."""

    @property
    def type(self) -> str:
        """Type name as the profiler writes it; "None" for an undefined element of a list."""

    @property
    def sizes(self) -> Sequence[int]:
        """Sizes."""

    @property
    def values(self) -> Sequence[int] | None:
        """Elements, the last dimension running fastest; None where they were not kept."""


class KeptArgument(Protocol):
    """An argument of one call."""

    @property
    def thread(self) -> int:
        """Thread id of the system."""

    @property
    def op(self) -> str:
        """Operator name."""

    @property
    def occurrence(self) -> int:
        """Number of earlier calls of the operator on the thread."""

    @property
    def place(self) -> int:
        """Place in the schema."""

    @property
    def is_list(self) -> bool:
        """True for a list of tensors."""

    @property
    def tensors(self) -> Sequence[KeptTensor]:
        """The tensor, or the elements of the list."""


def add_values(path: Path, kept: Iterable[KeptArgument]) -> None:
    """Writes values into the events of a Kineto trace.

    A call is found by its thread, its operator and its number among that operator's calls; the
    dims that the profiler recorded must be those of the tensor, else its values are left out.

    Args:
        path: The trace, which is replaced.
        kept: The values.
    """
    packed = path.name.endswith(".gz")
    data = path.read_bytes()
    document = orjson.loads(gzip.decompress(data) if packed else data)
    calls: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            calls[event["tid"], event["name"]].append(event)
    for events in calls.values():
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
    lost = 0
    for argument in kept:
        events = calls[argument.thread, argument.op]
        fields = events[argument.occurrence]["args"] if argument.occurrence < len(events) else {}
        if not _fits(argument, fields):
            lost += 1
            continue
        fields.setdefault(KEY, {})[str(argument.place)] = {
            "list": argument.is_list,
            "tensors": [
                {"type": tensor.type, "sizes": tensor.sizes, "values": tensor.values}
                for tensor in argument.tensors
            ],
        }
    if lost:
        logger.warning("%s: values of %d arguments belong to no call of the trace", path, lost)
    text = orjson.dumps(document)
    path.write_bytes(gzip.compress(text, 6) if packed else text)


def _fits(argument: KeptArgument, fields: Mapping[str, Any]) -> bool:
    dims = fields.get("Input Dims", [])
    if argument.place >= len(dims):
        return False
    return argument.is_list or dims[argument.place] == list(argument.tensors[0].sizes)


def with_values(
    arguments: tuple[RecordedArgument, ...], fields: Mapping[str, Any]
) -> tuple[RecordedArgument, ...]:
    """Returns the arguments of an event with the values that it holds.

    Raises:
        TypeError: The field has another form than `add_values` writes.
    """
    kept = fields.get(KEY)
    if not isinstance(kept, dict):
        return arguments
    return tuple(
        _with_values(argument, kept[str(place)]) if str(place) in kept else argument
        for place, argument in enumerate(arguments)
    )


def _with_values(argument: RecordedArgument, kept: Any) -> RecordedArgument:
    try:
        tensors = kept["tensors"]
        values = tuple(
            None if tensor["values"] is None else tuple(map(int, tensor["values"]))
            for tensor in tensors
        )
        if not kept["list"]:
            return replace(argument, contents=values)
        return RecordedArgument(
            type="TensorList",
            dims=tuple(tuple(map(int, tensor["sizes"])) for tensor in tensors),
            strides=None if argument.strides == () else argument.strides,
            value="",
            elements=tuple(str(tensor["type"]) for tensor in tensors),
            contents=values,
        )
    except (KeyError, ValueError) as error:
        raise TypeError(f"{KEY}: {error}") from error
