"""What a script must hold to make the arguments of a call: its description in, a few values out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opreplay import _C
from opreplay.inputs import DescribedInputs
from opreplay.recipes.call import InputTensor
from opreplay.recipes.tape import Tape, TapeStep, tensors_in
from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, Value

__all__ = [
    "BIT_PATTERNS",
    "MOST_BYTES",
    "SCALAR_TYPES",
    "Drawn",
    "Memory",
    "ScriptArgument",
    "ScriptCall",
    "ScriptTensor",
    "Spelt",
    "contents_of",
]

MOST_BYTES = 1 << 20
"""Bytes of the tensors that one script spells out."""

BIT_PATTERNS = {
    torch.bits8: "Bits8",
    torch.bits1x8: "Bits1x8",
    torch.bits2x4: "Bits2x4",
    torch.bits4x2: "Bits4x2",
    torch.float4_e2m1fn_x2: "Float4_e2m1fn_x2",
}
"""Dtypes of one byte without arithmetic, by their names in C++; a script draws bytes for them."""

SCALAR_TYPES = BIT_PATTERNS | {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
    torch.float8_e8m0fnu: "Float8_e8m0fnu",
}
"""Dtypes that a script fills, by their names in C++."""

_KEEPING = frozenset(
    f"aten::{name}"
    for name in ("_to_copy", "alias", "copy_", "detach", "reshape", "view", "view_as_real")
)
"""Operators of a step that change the form of values and not the values."""

_PRODUCTS = frozenset({"aten::mul", "aten::mul_"})
_SUMS = frozenset({"aten::add", "aten::add_"})


@dataclass(frozen=True, slots=True)
class Drawn:
    """Elements drawn anew, uniform in [low, high); integers where both are integers."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class Spelt:
    """Elements that stand in the script."""

    values: torch.Tensor
    """One dimension, on the CPU."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The storage of one tensor, or of several."""

    dtype: torch.dtype
    numel: int
    """Elements in it."""
    on_cpu: bool
    """Whether it lies on the CPU whatever the device of the call."""
    content: Drawn | Spelt | None
    """None where the operator writes without reading."""
    shared: bool
    """Whether several tensors lie in it."""


@dataclass(frozen=True, slots=True)
class ScriptTensor:
    """A tensor in a memory."""

    memory: int
    """Position in the memories of the call."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Of its first element [elements]."""

    def fills(self, memory: Memory) -> bool:
        """Whether it is contiguous and has the memory for itself, so that it can be made as one."""
        step = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return not memory.shared and self.offset == 0 and step == memory.numel


@dataclass(frozen=True, slots=True)
class ScriptArgument:
    """An argument: its place in the schema and its value."""

    parameter: _C.Parameter
    value: Any
    """A `ScriptTensor`, a `TorchValue`, a plain value, None, or a tuple of these."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """Everything that a script is written from."""

    op: str
    overload: str
    """Empty for the default overload."""
    notes: tuple[str, ...]
    """Schema, recipe and assumptions, a sentence each."""
    mode: str
    """How autograd sees the call: "inference" or "no_grad"."""
    seed: int
    modules: tuple[str, ...]
    """Modules to import, ``"module:function"`` where a function of one is called."""
    memories: tuple[Memory, ...]
    arguments: tuple[ScriptArgument, ...]


def contents_of(
    resolved: ResolvedCall, described: DescribedInputs, parameters: Sequence[_C.Parameter]
) -> tuple[tuple[Memory, ...], tuple[ScriptArgument, ...]]:
    """Returns the memories of a call and its arguments.

    Raises:
        ValueError: A file cannot hold one of them; the sentence says which and why.
    """
    made = _Memories(described)
    arguments = tuple(
        ScriptArgument(parameter, made.value(argument))
        for argument, parameter in zip(resolved.arguments, parameters, strict=True)
    )
    spelt = [m.content.values.nbytes for m in made.memories if isinstance(m.content, Spelt)]
    if sum(spelt) > MOST_BYTES:
        raise ValueError(
            f"the recipe chose {sum(spelt):,} bytes of values, a script holds {MOST_BYTES:,}; "
            "use opreplay bundle"
        )
    return tuple(made.memories), arguments


class _Memories:
    """Finds the memories of a call, each once."""

    def __init__(self, described: DescribedInputs) -> None:
        self._described = described
        self.memories: list[Memory] = []
        self._numbers: dict[int, int] = {}
        self._inside: dict[int, list[InputTensor]] = {}
        for tensor in described.call.present(*described.call.names):
            self._inside.setdefault(_memory_of(tensor), []).append(tensor)

    def value(self, argument: Argument) -> Any:
        if argument.name in self._described.call.produced:
            raise ValueError(
                f"argument {argument.name} is made by another operator in each process anew, which "
                "a script does not do; use opreplay bundle"
            )
        elements = self._described.call.elements_of(argument.name)
        if isinstance(argument.value, tuple):
            return tuple(
                self._element(argument.name, value, tensor)
                for value, tensor in zip(
                    argument.value, elements or [None] * len(argument.value), strict=True
                )
            )
        return self._element(argument.name, argument.value, elements[0] if elements else None)

    def _element(self, name: str, value: Value, tensor: InputTensor | None) -> Any:
        if not isinstance(value, TensorSpec) or tensor is None:
            return value
        if value.dtype not in SCALAR_TYPES:
            raise ValueError(
                f"argument {name} is {str(value.dtype).removeprefix('torch.')}, which a script "
                "does not fill; use opreplay bundle"
            )
        key = _memory_of(tensor)
        if key not in self._numbers:
            self._numbers[key] = len(self.memories)
            inside = self._inside[key]
            numel = tensor.elements.numel()
            content = _content(inside, self._described.tape) if numel else None
            on_cpu = name in self._described.on_cpu
            self.memories.append(Memory(value.dtype, numel, on_cpu, content, len(inside) > 1))
        made = tensor.unfilled  # the budget may have made it smaller than it was recorded
        return ScriptTensor(
            self._numbers[key], tensor.dims, made.stride(), int(made.storage_offset())
        )


def _memory_of(tensor: InputTensor) -> int:
    return int(tensor.unfilled.untyped_storage()._cdata)


def _content(inside: Sequence[InputTensor], tape: Tape) -> Drawn | Spelt | None:
    """What a memory holds when the call begins; a fill that is left to do covers all of it."""
    dtype, elements = inside[0].dtype, inside[0].elements
    for tensor in reversed(inside):
        if isinstance(tensor.pending, tuple):
            return Drawn(*tensor.pending)
        if tensor.pending == "random":
            return _random(dtype)
    numbers = tape.living_steps([tensor.unfilled for tensor in inside])
    if not numbers:
        return None
    return _drawn([tape.steps[number] for number in numbers], tape, dtype) or Spelt(elements)


def _drawn(steps: Iterable[TapeStep], tape: Tape, dtype: torch.dtype) -> Drawn | None:
    """The range that all elements were drawn from, where the steps do nothing else."""
    drawn: Drawn | None = None
    for step in steps:
        if step.op == "opreplay::fill_random_integers_":
            drawn = Drawn(*step.arguments[1:3])
        elif step.op == "opreplay::fill_random_":
            drawn = _random(dtype)
        elif any(tape.constant(tensor) is not None for tensor in tensors_in(step.arguments)):
            return None
        elif drawn is None or step.op not in _KEEPING:
            number = step.arguments[1] if len(step.arguments) > 1 else None
            if drawn is None or isinstance(drawn.low, int) or not isinstance(number, int | float):
                return None  # a multiple of an integer is no integer of a range
            if step.op in _PRODUCTS:
                drawn = Drawn(*sorted((drawn.low * number, drawn.high * number)))
            elif step.op in _SUMS:
                drawn = Drawn(drawn.low + number, drawn.high + number)
            else:
                return None
    return drawn


def _random(dtype: torch.dtype) -> Drawn:
    """What stands for random elements where no recipe says more."""
    if dtype in BIT_PATTERNS:
        return Drawn(0, 256)
    # This one has neither zero nor a sign.
    return Drawn(0.0625, 1.0) if dtype is torch.float8_e8m0fnu else Drawn(-1.0, 1.0)
