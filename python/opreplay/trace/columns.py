"""Many objects at once: columns of values come in, one instance for each place goes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from opreplay import _scan

__all__ = ["from_columns"]

T = TypeVar("T")


def from_columns(cls: type[T], size: int, /, **columns: Iterable[Any]) -> list[T]:
    """Returns instances of a dataclass with slots; the n-th holds the n-th value of each column.

    They are filled field by field: the ``__init__`` of a frozen class takes several times as long.

    Args:
        cls: The class; its ``__post_init__`` isn't called.
        size: Number of instances.
        columns: At least `size` values for each field.

    Raises:
        TypeError: The columns are not those of the class.
    """
    # No type names the classes that are dataclasses.
    expected = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if columns.keys() != expected:
        raise TypeError(f"{cls.__name__} has the fields {expected}, got {set(columns)}")
    made = [object.__new__(cls) for _ in range(size)]
    for name, column in columns.items():
        _scan.set_each(getattr(cls, name), made, column)
    return made
