"""Values of a JSON document with their places: a parsed value comes in, checked fields go out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opreplay.trace.steps import Phase, Step

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Node", "read_batch"]

T = TypeVar("T")


class Node:
    """A value of the file with its place, so that an error can name it."""

    def __init__(self, value: Any, place: str, path: str | Path) -> None:
        """Takes a value and where it stands.

        Args:
            value: As JSON was parsed.
            place: Its path in the document, as ``"calls[3].op"``; empty for the top.
            path: The file.
        """
        self.value = value
        self.path = path
        self._place = place

    def failure(self, sentence: str) -> ValueError:
        """Makes the error of this kind of file out of a sentence, and adds the remedy."""
        return ValueError(sentence)

    def error(self, expected: str) -> ValueError:
        """Makes the error that says what stands here and what should."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        place = self._place or "top level"
        return self.failure(f"{self.path}: {place}: expected {expected}, got {shown}")

    def field(self, name: str, read: Callable[[Self], T]) -> T:
        """Reads a field that an object must have."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if name not in self.value:
            raise self.error(f"an object with {name!r}")
        place = f"{self._place}.{name}" if self._place else name
        return read(type(self)(self.value[name], place, self.path))

    def each(self, read: Callable[[Self], T]) -> tuple[T, ...]:
        """Reads every element of a list."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        return tuple(
            read(type(self)(element, f"{self._place}[{index}]", self.path))
            for index, element in enumerate(self.value)
        )

    def items(self, read: Callable[[Self], T]) -> tuple[tuple[str, T], ...]:
        """Reads every field of an object."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return tuple((name, self.field(name, read)) for name in self.value)

    def optional(self, read: Callable[[Self], T]) -> T | None:
        """Reads a value that may be null."""
        return None if self.value is None else read(self)

    def text(self) -> str:
        """Reads a string."""
        return self._typed(str, "text")

    def flag(self) -> bool:
        """Reads a bool."""
        return self._typed(bool, "true or false")

    def count(self) -> int:
        """Reads a whole number from 0."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            raise self.error("a whole number from 0")
        return self.value

    def number(self) -> float:
        """Reads a number."""
        if isinstance(self.value, bool):
            raise self.error("a number")
        return float(self._typed((int, float), "a number"))

    def parameter(self) -> str | int | float:
        """Reads a string or a number."""
        return self.value if isinstance(self.value, str) else self._typed((int, float), "a value")

    def choice(self, accepted: tuple[str, ...]) -> Any:
        """Reads one of several strings."""
        if self.value not in accepted:
            raise self.error(f"one of {', '.join(accepted)}")
        return self.value

    def _typed(self, kind: type[T] | tuple[type[T], ...], name: str) -> T:
        if not isinstance(self.value, kind):
            raise self.error(name)
        return self.value


def read_batch(node: Node) -> Step:
    """Reads what an engine wrote about a step."""
    return Step(
        context=node.field("context", _read_phase),
        generation=node.field("generation", _read_phase),
        annotation=node.field("annotation", Node.text),
        guess=node.field("guess", Node.text),
    )


def _read_phase(node: Node) -> Phase:
    return Phase(
        sequences=node.field("sequences", Node.count),
        queries=node.field("queries", lambda total: total.optional(Node.count)),
        keys=node.field("keys", lambda total: total.optional(Node.count)),
        carried=node.field("carried", Node.flag),
        squares=node.field("squares", lambda total: total.optional(Node.count)),
        products=node.field("products", lambda total: total.optional(Node.count)),
        lengths=node.field(
            "lengths", lambda list_: list_.optional(lambda one: one.each(Node.count))
        ),
    )
