"""Arguments of an Execution Trace's call: the inputs of one node come in, typed ones go out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opreplay.trace.call import RecordedArgument

__all__ = ["event_of_values", "read_execution_arguments"]

_SCALARS = frozenset({"Int", "Double", "Bool", "ComplexDouble"})
_LIST = "GenericList["


def read_execution_arguments(inputs: Mapping[str, Any]) -> tuple[RecordedArgument, ...] | None:
    """Returns the inputs of a call in schema order; None where they are not recorded in full.

    Args:
        inputs: Parallel lists ``values``, ``shapes``, ``types`` and perhaps ``strides``; a tensor's
            value is its storage's number within the call, its offset [elements] and its device.
    """
    values, shapes, types = (inputs.get(key) for key in ("values", "shapes", "types"))
    strides = inputs.get("strides")
    if not (isinstance(values, list) and isinstance(shapes, list) and isinstance(types, list)):
        return None
    steps = [None] * len(types) if strides is None else strides
    if not isinstance(steps, list) or not len(values) == len(shapes) == len(types) == len(steps):
        return None
    uses = Counter(
        value[0]
        for value, kind in zip(values, types, strict=True)
        if _is_tensor(kind) and isinstance(value, list)
    )
    try:
        return tuple(
            _argument(kind, value, sizes, step, uses)
            for kind, value, sizes, step in zip(types, values, shapes, steps, strict=True)
        )
    except (TypeError, ValueError, IndexError):
        return None


def _argument(
    kind: str, value: Any, sizes: Any, steps: Any, uses: Mapping[int, int]
) -> RecordedArgument:
    if kind == "None" or _is_undefined(kind):
        return RecordedArgument("None", (), (), "")
    if _is_tensor(kind):
        number, offset = value[0], value[1]
        return RecordedArgument(
            type=_element(kind),
            dims=_sizes(sizes),
            strides=None if steps is None else _sizes(steps),
            value="",
            storage=(number, _whole(offset)) if uses[number] > 1 else None,
        )
    if kind in _SCALARS:
        return RecordedArgument("Scalar", (), (), _number(kind, value))
    if kind in ("Device", "String"):
        return RecordedArgument(kind, (), (), str(value))
    if kind.startswith(_LIST) and kind.endswith("]") and isinstance(value, list):
        kinds = [item for item in kind[len(_LIST) : -1].split(",") if item]
        if kinds and all(_is_tensor(item) for item in kinds):
            return _tensor_list(kinds, sizes, steps)
        if len(kinds) == len(value) and all(item in _SCALARS for item in kinds):
            texts = [_number(item, part) for item, part in zip(kinds, value, strict=True)]
            return RecordedArgument("ScalarList", (), (), f"[{', '.join(texts)}]")
    # Objects, streams, storages and tuples: the recorder writes no value that could be given again.
    return RecordedArgument("", (), (), "")


def _tensor_list(kinds: list[str], sizes: Any, steps: Any) -> RecordedArgument:
    if len(sizes) != len(kinds):
        raise ValueError("as many shapes as tensors were expected")
    return RecordedArgument(
        type="TensorList",
        dims=tuple(_sizes(entry) for entry in sizes),
        strides=None if steps is None else tuple(_sizes(entry) for entry in steps),
        value="",
        elements=tuple("None" if _is_undefined(item) else _element(item) for item in kinds),
    )


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("Tensor(")


def _is_undefined(kind: str) -> bool:
    return kind.startswith("Tensor(nullptr")


def _element(kind: str) -> str:
    return kind.removeprefix("Tensor(").removesuffix(")")


def _number(kind: str, value: Any) -> str:
    return str(float(value)) if kind == "Double" else str(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, got {value!r}")
    return value


def _sizes(entry: Any) -> tuple[int, ...]:
    return tuple(_whole(size) for size in entry)


def event_of_values(name: str, arguments: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an event of the operator `name` whose inputs are given by schema type and value.

    Args:
        name: Operator name.
        arguments: Schema type and value of each argument. A tensor is a mapping with ``shape``,
            ``dtype`` and ``strides``, a complex number is text.

    Raises:
        KeyError: A tensor lacks a field, or a value is of no kind that JSON has.
    """
    kinds: list[str] = []
    values: list[Any] = []
    shapes: list[Any] = []
    strides: list[Any] = []
    for number, (schema_type, value) in enumerate(arguments):
        kinds.append(_kind_of(schema_type, value))
        tensor = isinstance(value, Mapping)
        values.append([number, 0] if tensor else value)
        listed = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
        for sizes, key in ((shapes, "shape"), (strides, "strides")):
            if listed:
                sizes.append([[] if item is None else item[key] for item in value])
            else:
                sizes.append(value[key] if tensor else [])
    inputs = {"types": kinds, "values": values, "shapes": shapes, "strides": strides}
    return {"name": name, "args": {"execution_inputs": inputs}}


_KIND_OF_NUMBER = {bool: "Bool", int: "Int", float: "Double"}


def _kind_of(schema_type: str, value: Any) -> str:
    """The recorder's name of the kind of a value."""
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"Tensor({value['dtype']})"
    if isinstance(value, list):
        element = schema_type.partition("[")[0]
        undefined = "Tensor(nullptr (uninitialized))"
        kinds = [undefined if item is None else _kind_of(element, item) for item in value]
        return f"{_LIST}{','.join(kinds)}]"
    if isinstance(value, str):
        if schema_type.startswith("Device"):
            return "Device"
        return "ComplexDouble" if schema_type.startswith("Scalar") else "String"
    return _KIND_OF_NUMBER[type(value)]
