"""What scripts of all languages have in common: a template and values come in, text goes out."""

from __future__ import annotations

import base64
import string
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import torch

from opreplay.script.contents import (
    BIT_PATTERNS,
    Drawn,
    Memory,
    ScriptArgument,
    ScriptCall,
    ScriptTensor,
    Spelt,
)

__all__ = ["Writer", "base64_lines"]

_MOST_LISTED = 64
"""Integers of one tensor that are listed; more are packed."""


class _Template(string.Template):
    delimiter = "@"


class Writer(ABC):
    """Writes one call in one language. The functions that make tensors have the same names in all.

    Whatever is drawn is drawn on the CPU in the order of the arguments, so that scripts of all
    languages make the same tensors on all devices.
    """

    template: str
    """Name of the file beside this one that has the fixed part."""
    mark: str
    """Begins a comment."""
    view_as_complex: str
    """Name of torch's function."""

    def __init__(self, call: ScriptCall) -> None:
        """Takes the call."""
        self.call = call

    @abstractmethod
    def dtype(self, dtype: torch.dtype) -> str:
        """Writes a dtype."""

    @abstractmethod
    def sequence(self, values: Iterable[str]) -> str:
        """Writes sizes, strides or a list of integers."""

    @abstractmethod
    def plain(self, value: bool | int | float | complex | str | None) -> str:
        """Writes a value that no torch is needed for."""

    @abstractmethod
    def pack(self, data: bytes) -> str:
        """Writes what `packed` of the template reads."""

    @abstractmethod
    def memory_line(self, name: str, text: str) -> str:
        """Writes a statement that names a memory in which several tensors lie."""

    @abstractmethod
    def argument_line(self, argument: ScriptArgument) -> str:
        """Writes what adds an argument."""

    @abstractmethod
    def written_line(self, place: int, name: str) -> str:
        """Writes what shows an argument that the operator wrote to."""

    @abstractmethod
    def parts(self) -> dict[str, object]:
        """The parts of the template that this language alone has."""

    def text(self) -> str:
        """The file."""
        memories = [
            self.memory_line(f"memory{number}", self._memory(memory, [memory.numel]))
            for number, memory in enumerate(self.call.memories)
            if memory.shared
        ]
        template = resources.files("opreplay.script").joinpath(self.template).read_text()
        return _Template(template).substitute(
            notes=self._notes(),
            seed=self.call.seed,
            memories="".join(f"{line}\n" for line in memories),
            arguments="\n".join(map(self.argument_line, self.call.arguments)),
            written="".join(
                f"\n{self.written_line(place, one.parameter.name)}"
                for place, one in enumerate(self.call.arguments)
                if one.parameter.written
            ),
            **self.parts(),
        )

    def integers(self, values: Iterable[int]) -> str:
        """Writes integers as a sequence."""
        return self.sequence(map(self.plain, values))

    def tensor(self, tensor: ScriptTensor) -> str:
        """Writes what makes a tensor."""
        memory = self.call.memories[tensor.memory]
        if tensor.fills(memory):
            return self._memory(memory, tensor.size)
        whole = f"memory{tensor.memory}" if memory.shared else self._memory(memory, [memory.numel])
        size, stride = self.integers(tensor.size), self.integers(tensor.stride)
        return f"strided({whole}, {size}, {stride}, {tensor.offset})"

    def _memory(self, memory: Memory, size: Sequence[int]) -> str:
        return self._made(memory, size) + (".cpu()" if memory.on_cpu else "")

    def _made(self, memory: Memory, size: Sequence[int]) -> str:
        content = memory.content
        place = f"{self.dtype(memory.dtype)}, {self.integers(size)}"
        if isinstance(content, Spelt):
            return self._spelt(content.values, place)
        if memory.dtype in BIT_PATTERNS:
            low, high = (0, 1) if content is None else (content.low, content.high)
            bytes_ = f"{self.dtype(torch.uint8)}, {self.integers(size)}, {low}, {high}"
            return f"integers({bytes_}).view({self.dtype(memory.dtype)})"
        if content is None:
            return f"filled({place}, {self.plain(0)})"
        bounds = f"{self.plain(content.low)}, {self.plain(content.high)}"
        if memory.dtype.is_complex:
            parts = f"{self.dtype(memory.dtype.to_real())}, {self.integers([*size, 2])}"
            return f"{self.view_as_complex}(uniform({parts}, {bounds}))"
        return f"{'integers' if _is_integer(content) else 'uniform'}({place}, {bounds})"

    def _spelt(self, values: torch.Tensor, place: str) -> str:
        if _is_plain(values.dtype):
            if (constant := _constant(values)) is not None:
                return f"filled({place}, {self.plain(constant)})"
            if values.numel() <= _MOST_LISTED and not values.is_floating_point():
                return f"listed({place}, {self.integers(map(int, values.tolist()))})"
        return f"packed({place}, {self.pack(values.view(torch.uint8).numpy().tobytes())})"

    def _notes(self) -> str:
        """Comments, none with a backslash at its end, which would draw the next line into it."""
        lines = [line for note in self.call.notes for line in textwrap.wrap(note, 96)]
        ended = (f"{line}." if line.endswith("\\") else line for line in lines)
        return "\n".join(f"{self.mark} {line}" for line in ended)


def base64_lines(data: bytes) -> str:
    """Bytes as neighbouring string literals, in Python and in C++."""
    text = base64.b64encode(data).decode()
    return "".join(f'\n        "{text[i : i + 88]}"' for i in range(0, len(text), 88))


def _is_integer(drawn: Drawn) -> bool:
    return isinstance(drawn.low, int) and isinstance(drawn.high, int)


def _is_plain(dtype: torch.dtype) -> bool:
    return not (dtype.is_complex or dtype in BIT_PATTERNS)


def _constant(values: torch.Tensor) -> Any:
    """The value of all elements, where they have the same."""
    wide = values.to(torch.float64 if values.is_floating_point() else torch.int64)
    return values[0].item() if bool((wide == wide[0]).all()) else None
