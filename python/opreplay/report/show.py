"""Shows recorded calls once resolved: what the profiler wrote comes in, what it means goes out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue, Value
from opreplay.trace.call import CallGroup, Skipped

if TYPE_CHECKING:
    from opreplay.resolve import Resolver

__all__ = ["print_call", "show_calls"]

_MOST_VALUE_CHARACTERS = 60


def show_calls(groups: Sequence[CallGroup], resolver: Resolver, console: Console) -> None:
    """Resolves and prints each signature.

    Args:
        groups: What to show.
        resolver: Resolves them.
        console: Where to print.
    """
    for group in groups:
        found = resolver.resolve(group.call)
        if isinstance(found, Skipped) and group.unrecorded is not None:
            found = Skipped(found.reason, group.unrecorded)
        print_call(group, found, console)


def print_call(group: CallGroup, found: ResolvedCall | Skipped, console: Console) -> None:
    """Prints one signature: as recorded where it cannot be resolved, else every argument."""
    console.print(
        f"{group.call.name}  signature {group.signature}, {group.count:,} calls, "
        f"median {group.host.median:.2f} us",
        soft_wrap=True,
    )
    if isinstance(found, Skipped):
        console.print(f"  {found.reason}: {found.detail}", soft_wrap=True)
        console.print(_recorded_table(group))
    else:
        console.print(f"  {found.schema or 'no schema: a Python function'}", soft_wrap=True)
        console.print(_argument_table(found))
        for sentence in found.assumptions:
            console.print(f"  assumed: {sentence}", soft_wrap=True)
    console.print()


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=True, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _recorded_table(group: CallGroup) -> Table:
    table = _table("place", "type", "dims", "strides", "value")
    for place, argument in enumerate(group.call.arguments or ()):
        strides = "" if argument.strides is None else _compact(argument.strides)
        table.add_row(
            str(place), argument.type, _compact(argument.dims), strides, argument.value or ""
        )
    return table


def _argument_table(call: ResolvedCall) -> Table:
    table = _table("name", "type", "dtype", "dims", "strides", "value", "guess")
    for argument in call.arguments:
        value = argument.value
        first = [argument.name, argument.type]
        guess = "yes" if _is_guessed(argument, call.assumptions) else ""
        if isinstance(value, TensorSpec):
            table.add_row(*first, *_tensor_cells(value), "output" if argument.output else "", guess)
        elif isinstance(value, tuple) and any(isinstance(e, TensorSpec) for e in value):
            table.add_row(*first, "", "", "", f"{len(value)} elements", guess)
            for index, element in enumerate(value):
                cells = _tensor_cells(element) if isinstance(element, TensorSpec) else [""] * 3
                text = "" if isinstance(element, TensorSpec) else _text(element)
                table.add_row(f"  [{index}]", "Tensor", *cells, text, "")
        else:
            table.add_row(*first, "", "", "", _text(value), guess)
    return table


def _tensor_cells(spec: TensorSpec) -> list[str]:
    dtype = str(spec.dtype).removeprefix("torch.")
    return [dtype, _compact(spec.dims), _compact(spec.strides)]


def _compact(sizes: object) -> str:
    return str(sizes).replace("(", "[").replace(",)", "]").replace(")", "]").replace(" ", "")


def _text(value: Value) -> str:
    if isinstance(value, TorchValue):
        return f"{value.kind} {value.text}".rstrip()
    text = _compact(value) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= _MOST_VALUE_CHARACTERS else f"{text[:_MOST_VALUE_CHARACTERS]}..."


def _is_guessed(argument: Argument, assumptions: Sequence[str]) -> bool:
    """Says whether an assumption is about an argument: it then begins with the argument's name."""
    name = re.compile(rf"(?:argument )?{re.escape(argument.name)}[:\[]")
    return any(name.match(sentence) for sentence in assumptions)
