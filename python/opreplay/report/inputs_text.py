"""The inputs of a call in one line: recorded or planned arguments come in, text goes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opreplay.plan import PlannedArgument, PlannedTensor, PlannedValue
from opreplay.trace import RecordedArgument

__all__ = ["planned_inputs", "recorded_inputs"]


def recorded_inputs(arguments: Sequence[RecordedArgument] | None) -> str:
    """Writes types with dims, and values of scalars."""
    if arguments is None:
        return "not recorded"
    texts = []
    for argument in arguments:
        if argument.value:
            texts.append(argument.value)
        elif argument.type and argument.type not in ("Scalar", "ScalarList"):
            sizes = str([list(d) if isinstance(d, tuple) else d for d in argument.dims])
            texts.append(argument.type.removeprefix("c10::") + sizes.replace(" ", ""))
        else:
            texts.append("-")
    return ", ".join(texts)


def planned_inputs(arguments: Iterable[PlannedArgument]) -> str:
    """Writes dtypes with dims, and values of scalars."""
    return ", ".join(_planned(argument.value) for argument in arguments)


def _planned(value: PlannedValue) -> str:
    if isinstance(value, PlannedTensor):
        return value.dtype + str(list(value.dims)).replace(" ", "")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_planned, value))}]"
    return "-" if value is None else str(getattr(value, "text", value))
