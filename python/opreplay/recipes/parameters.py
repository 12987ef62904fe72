"""Parameters of recipes: what a user may set comes in as text, checked values go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Parameter", "ParameterValue", "own_parameters", "read_parameters"]

ParameterValue = str | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that a recipe lets the user choose."""

    name: str
    """Family and name, for instance ``"moe.s"``."""
    default: ParameterValue
    """Value unless set; its type is that of every value."""
    unit: str
    """Unit of a number; what the text stands for otherwise."""
    choices: tuple[str, ...] = ()
    """All values that a text may have; none means any."""

    def read(self, text: str) -> ParameterValue:
        """Reads a value.

        Raises:
            ValueError: The text is none of the choices, or no number.
        """
        if self.choices and text not in self.choices:
            raise ValueError(f"{self.name} is {text!r}, expected one of {', '.join(self.choices)}")
        try:
            return type(self.default)(text)
        except ValueError as error:
            kind = type(self.default).__name__
            raise ValueError(f"{self.name} is {text!r}, expected {kind} [{self.unit}]") from error


def own_parameters(
    known: Iterable[Parameter], given: Mapping[str, str]
) -> dict[str, ParameterValue]:
    """Returns the value of every known parameter; names of other recipes are passed over.

    Raises:
        ValueError: A value is malformed.
    """
    known = tuple(known)
    return read_parameters(known, {p.name: given[p.name] for p in known if p.name in given})


def read_parameters(
    known: Iterable[Parameter], given: Mapping[str, str]
) -> dict[str, ParameterValue]:
    """Returns the value of every known parameter, the default where none is given.

    Raises:
        ValueError: A name is not known, or a value is malformed.
    """
    by_name = {parameter.name: parameter for parameter in known}
    for name in given:
        if name not in by_name:
            there = ", ".join(sorted(by_name)) or "none"
            raise ValueError(f"no recipe has a parameter {name!r}; there are: {there}")
    return {
        name: parameter.read(given[name]) if name in given else parameter.default
        for name, parameter in by_name.items()
    }
