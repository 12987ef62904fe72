"""Records what a recipe does: the operators that it runs come in, the steps that matter go out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Tape", "TapeStep"]

_FILLS = frozenset({"opreplay::fill_random_", "opreplay::fill_random_integers_"})


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One operator that ran."""

    op: str
    """Name without overload."""
    overload: str
    """Overload name; empty for the default overload."""
    arguments: tuple[Any, ...]
    """Values in schema order, defaults filled in."""
    outputs: tuple[Any, ...]
    """What it returned, an entry for each output of the schema."""
    written: tuple[torch.Tensor, ...]
    """Those of its arguments that it wrote to."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator that runs is a step.

    Whatever Python alone computes, sizes and lists for instance, is a constant of the steps after
    it. Fills are put off until something reads the tensor, so that weights that nothing reads cost
    no time.
    """

    def __init__(self) -> None:
        """Makes an empty tape."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[TapeStep] = []
        """What ran, in order."""
        self._known: dict[int, torch.Tensor] = {}
        self._constants: dict[int, torch.Tensor] = {}
        self._put_off: dict[int, list[tuple[Any, tuple[Any, ...]]]] = {}

    def know(self, tensor: torch.Tensor) -> None:
        """Says that a tensor is there before the first step, and is no constant."""
        self._known[id(tensor)] = tensor

    def constant(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns what a tensor that no step made held when it was first used."""
        return self._constants.get(id(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator and notes it."""
        schema = func._schema
        if schema.name == "aten::lift_fresh":  # a new constant, told when something uses it
            return func(*args, **(kwargs or {}))
        arguments = _in_schema_order(schema, args, kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and not any(
            isinstance(value, torch.Generator) for value in arguments
        ):
            raise ValueError(
                f"{schema.name} draws from torch's own generator, whose state no one can repeat; "
                "pass a torch.Generator, or draw with random_integers"
            )
        for tensor in tensors_in(arguments):
            if id(tensor) not in self._known:
                self._constants[id(tensor)] = tensor.detach().clone()
                self.know(tensor)
        result = self._run(schema.name, func, arguments, args, kwargs or {})
        outputs = tuple(result) if len(schema.returns) > 1 else (result,) * len(schema.returns)
        for tensor in tensors_in(outputs):
            self.know(tensor)
        written = tuple(
            tensor
            for parameter, value in zip(schema.arguments, arguments, strict=True)
            if parameter.alias_info is not None and parameter.alias_info.is_write
            for tensor in tensors_in([value])
        )
        overload = "" if func._overloadname == "default" else func._overloadname
        self.steps.append(TapeStep(schema.name, overload, tuple(arguments), outputs, written))
        return result

    def _run(
        self, name: str, func: Any, arguments: list[Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        if name in _FILLS:
            self._put_off.setdefault(_storage(arguments[0]), []).append((func, tuple(arguments)))
            return None
        for tensor in tensors_in(arguments):
            for fill, filled in self._put_off.pop(_storage(tensor), ()):
                fill(*filled)
        return func(*args, **kwargs)

    def living_steps(
        self, roots: Iterable[torch.Tensor], *, and_steps: Iterable[int] = ()
    ) -> list[int]:
        """Returns the numbers of the steps that say what some tensors hold, in order.

        Args:
            roots: The tensors.
            and_steps: Numbers of steps that matter for what they do.
        """
        wanted = set(and_steps)
        alive = {_storage(tensor) for tensor in roots}
        living = []
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            touched = tensors_in((*step.outputs, *step.written))
            if number in wanted or any(_storage(tensor) in alive for tensor in touched):
                living.append(number)
                alive.update(_storage(tensor) for tensor in tensors_in(step.arguments))
        return living[::-1]


def tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors among values, those in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _in_schema_order(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return [
        args[place] if place < len(args) else kwargs.get(parameter.name, parameter.default_value)
        for place, parameter in enumerate(schema.arguments)
    ]
