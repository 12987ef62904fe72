"""Symbols: a size that the user sets comes in, every dim and number that follows it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opreplay.trace.steps import Step

__all__ = ["Sizes", "Symbols"]


class Sizes:
    """The dims of all tensors of a call and its integers, by argument name, to be changed.

    An argument that nobody reads, changes or declares as fixed makes a call impossible to size:
    nothing tells whether it would follow.
    """

    def __init__(
        self, op: str, dims: Mapping[str, Sequence[int]], numbers: Mapping[str, int]
    ) -> None:
        """Takes what was recorded.

        Args:
            op: Name of the operator that runs.
            dims: Sizes of each argument that is one tensor.
            numbers: Value of each argument that is an integer.
        """
        self.op = op
        """Name of the operator that runs."""
        self.dims = {name: list(sizes) for name, sizes in dims.items()}
        """Sizes of each tensor, as changed so far."""
        self.numbers = dict(numbers)
        """Value of each integer, as changed so far."""
        self._known: set[str] = set()

    def named(self, names: Iterable[str]) -> list[str]:
        """Returns the tensors that have one of some names."""
        there = [name for name in names if name in self.dims]
        self._known.update(there)
        return there

    def dim(self, names: Iterable[str], dim: int) -> int:
        """Returns the size of a dimension of the first tensor that has one of some names.

        Raises:
            ValueError: The call has none, or it has fewer dimensions.
        """
        names = tuple(names)
        there = self.named(names)
        if not there or len(self.dims[there[0]]) <= dim:
            raise ValueError(f"{self.op} has no {names[0]} with a dimension {dim}")
        return self.dims[there[0]][dim]

    def resize(self, names: Iterable[str], dim: int, size: int) -> None:
        """Changes one dimension of all tensors that have one of some names."""
        for name in self.named(names):
            self.dims[name][dim] = size

    def set_numbers(self, names: Iterable[str], value: int) -> None:
        """Changes all integers that have one of some names."""
        for name in names:
            if name in self.numbers:
                self.numbers[name] = value

    @property
    def unknown(self) -> list[str]:
        """Tensors of more than one element of which nothing tells what they follow."""
        return [
            name
            for name, sizes in self.dims.items()
            if name not in self._known and any(size != 1 for size in sizes)
        ]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The sizes by which calls of a recipe can grow, each with all that follows it."""

    names: tuple[str, ...]
    """What the user may set; each is at least 1."""
    apply: Callable[[Sizes, Mapping[str, int]], Step | None]
    """Changes the sizes for the symbols that are set, together; those that are not keep what the
    call had. Returns the batch that the values stand for, None to leave it to the recipe; raises
    ValueError for sizes that the operator does not take."""
