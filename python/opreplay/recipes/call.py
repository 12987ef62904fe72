"""What a recipe works on: the tensors of one materialised call, found by argument name."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from opreplay import _C  # noqa: F401  (registers torch.ops.opreplay)
from opreplay.recipes.parameters import ParameterValue
from opreplay.trace.steps import Step

__all__ = ["DefaultFill", "InputTensor", "RecipeCall", "RecipeError", "run_operator"]

DefaultFill = Literal["random", "none"] | tuple[int, int]
"""What a tensor holds where no recipe says otherwise: ``"random"`` floats in [-1, 1) or random bit
patterns, integers in [low, high), or ``"none"``: whatever the allocation left there."""

_STREAMS_PER_TENSOR = 1 << 8


class RecipeError(Exception):
    """A recipe cannot give a call the values that it needs."""


class InputTensor:
    """A tensor argument, and the ways to fill it.

    It is filled once: by the recipe, or else by its default when it is first read or when the
    recipe is done. All randomness comes from the seed and the tensor's own stream, so that the
    same call gets the same bits on every device.
    """

    __slots__ = (
        "_default",
        "_device",
        "_elements",
        "_filled",
        "_seed",
        "_stream",
        "_tensor",
        "true_elements",
    )

    def __init__(
        self,
        tensor: torch.Tensor,
        elements: torch.Tensor,
        *,
        seed: int,
        stream: int,
        default: DefaultFill,
        true_elements: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Takes a tensor that holds no values yet.

        Args:
            tensor: The tensor as the operator gets it.
            elements: Its whole storage in one dimension, in a dtype that can be filled.
            seed: Seed of the run.
            stream: First of 256 random streams that belong to this tensor.
            default: What it holds unless a recipe fills it.
            true_elements: Number of elements of a mask that are true, where the trace tells it.
            device: The device that was asked for; None stands for the tensor's own.
        """
        self._tensor = tensor
        self._elements = elements
        self._seed = seed
        self._stream = stream
        self._default = default
        self._device = tensor.device if device is None else device
        self._filled = False
        self.true_elements = true_elements
        """Number of elements of a mask that are true; None where the trace doesn't tell it."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes."""
        return tuple(self._tensor.shape)

    @property
    def numel(self) -> int:
        """Number of elements that the operator sees."""
        return self._tensor.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._tensor.dtype

    @property
    def is_real(self) -> bool:
        """True for floating point and complex elements."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._device

    @property
    def value(self) -> torch.Tensor:
        """The tensor itself, with its default values unless it was filled before."""
        self.fill()
        return self._tensor

    @property
    def filled(self) -> bool:
        """True if it holds values, or the operator overwrites it without reading it."""
        return self._filled

    @property
    def unfilled(self) -> torch.Tensor:
        """The tensor itself, whether or not it holds values yet."""
        return self._tensor

    @property
    def elements(self) -> torch.Tensor:
        """Its whole storage in one dimension, in a dtype that can be filled."""
        return self._elements

    @property
    def pending(self) -> DefaultFill:
        """What `fill` would give it now: ``"none"`` once it was filled."""
        return "none" if self._filled else self._default

    def fill(self) -> None:
        """Gives the tensor its default values unless it was filled before."""
        if self._filled:
            return
        self._filled = True
        if isinstance(self._default, tuple):
            self.fill_integers(*self._default)
        elif self._default == "random":
            self._fill_random()

    def leave_unfilled(self) -> None:
        """Says that the operator overwrites the tensor without reading it."""
        self._filled = True

    def fill_integers(self, low: int, high: int) -> None:
        """Fills the storage with integers uniform in [low, high), cut to what the dtype holds.

        Raises:
            RecipeError: The range is empty though values are needed, or the dtype is no integer's.
        """
        elements = self._elements
        if self.is_real:
            raise RecipeError(f"integers in [{low}, {high}) are needed, the tensor is {self.dtype}")
        self._filled = True
        if elements.numel() == 0:
            return
        least, most = (0, 1) if elements.dtype is torch.bool else _limits(elements.dtype)
        first, end = max(low, least), min(high, most + 1)
        if first >= end:
            raise RecipeError(f"no {self.dtype} value lies in [{low}, {high})")
        torch.ops.opreplay.fill_random_integers_(elements, first, end, self._seed, self._stream)

    def fill_floats(self, low: float, high: float) -> None:
        """Fills the storage with floats uniform from `low` to `high`; rounding may reach `high`.

        Raises:
            RecipeError: The dtype is no floating point or complex one.
        """
        if not self.is_real:
            raise RecipeError(f"floats in [{low}, {high}) are needed, the tensor is {self.dtype}")
        self._filled = True
        self._fill_random()
        parts = self._elements
        if self.dtype is torch.float8_e8m0fnu or self.dtype is torch.float4_e2m1fn_x2:
            return  # Powers of two are positive as they are; nothing computes with four bits.
        if parts.is_complex():
            parts = torch.view_as_real(parts)
        if parts.dtype.itemsize == 1:
            # No arithmetic on eight bits; half precision holds each of their values.
            wide = parts.half().mul_((high - low) / 2).add_((high + low) / 2)
            parts.copy_(wide)
        else:
            parts.mul_((high - low) / 2).add_((high + low) / 2)

    def write(self, values: torch.Tensor) -> None:
        """Copies values of the tensor's shape into it.

        Along a dimension of stride 0 there is one element; it takes the first of the values.

        Raises:
            RecipeError: The shapes differ, or elements overlap in another way.
        """
        target = self._tensor
        if values.shape != target.shape:
            raise RecipeError(f"values are {tuple(values.shape)}, the tensor is {self.dims}")
        for dim, stride in enumerate(target.stride()):
            if stride == 0 and target.size(dim) > 1:
                target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
        if _overlaps(target):
            raise RecipeError(f"elements share memory: sizes {self.dims}, {target.stride() = }")
        self._filled = True
        if self._elements.numel() > target.numel():
            self._elements.zero_()
        target.copy_(values)

    def write_list(self, values: Sequence[int]) -> None:
        """Writes one number per element, the last dimension running fastest.

        Raises:
            RecipeError: There are more or fewer values than elements.
        """
        if len(values) != self.numel:
            raise RecipeError(f"{len(values)} values for a tensor of {self.numel} elements")
        made = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.write(made.view(self.dims).to(self.dtype))

    def write_distinct(self, count: int, *, over: Sequence[int] | None = None) -> None:
        """Writes integers in [0, count), none twice over some dimensions as far as count allows.

        Args:
            count: End of the range.
            over: Dimensions; for each position in the others the values are drawn anew. None
                stands for all.

        Raises:
            RecipeError: The range is empty though values are needed.
        """
        sizes = list(self.dims)
        chosen = range(len(sizes)) if over is None or not sizes else [d % len(sizes) for d in over]
        begin = self.random_integers(
            [min(1, size) if dim in chosen else size for dim, size in enumerate(sizes)], 0, count
        )
        place = torch.zeros((), dtype=torch.int64, device=self.device)
        for dim in chosen:
            along = torch.arange(sizes[dim], device=self.device)
            after = len(sizes) - 1 - dim
            place = place * sizes[dim] + along.view([-1] + [1] * after)
        self.write((begin + place * _scattering_step(count)) % max(count, 1))

    def write_true(self, count: int) -> None:
        """Sets so many elements to one, spread over the tensor, and all others to zero.

        Raises:
            RecipeError: The tensor has fewer elements.
        """
        if count > self.numel:
            raise RecipeError(f"{count} true elements do not fit into {self.numel}")
        place = torch.arange(self.numel, device=self.device)
        values = place * count % max(self.numel, 1) < count
        self.write(values.view(self.dims).to(self.dtype))

    def random_integers(
        self, shape: Sequence[int], low: int, high: int, *, draw: int = 1
    ) -> torch.Tensor:
        """Returns new int64 values uniform in [low, high), on the tensor's device.

        Args:
            shape: Shape of the result.
            low: Least value.
            high: End of the range.
            draw: Number of the draw, 1 to 255: other draws give other values.

        Raises:
            RecipeError: The range is empty though values are needed.
        """
        if not 0 < draw < _STREAMS_PER_TENSOR:
            raise ValueError(f"{draw = } is not in 1 to {_STREAMS_PER_TENSOR - 1}")
        values = torch.empty(tuple(shape), dtype=torch.int64, device=self.device)
        drawn = InputTensor(
            values, values.view(-1), seed=self._seed, stream=self._stream + draw, default="none"
        )
        drawn.fill_integers(low, high)
        return values

    def _fill_random(self) -> None:
        elements = self._elements
        if elements.is_floating_point() or elements.is_complex():
            torch.ops.opreplay.fill_random_(elements, self._seed, self._stream)
        else:
            least, most = _limits(elements.dtype)
            torch.ops.opreplay.fill_random_integers_(
                elements, least, most + 1, self._seed, self._stream
            )


class RecipeCall:
    """The tensors and values of one call, by the names of its schema."""

    def __init__(
        self,
        op: str,
        values: Mapping[str, Any],
        tensors: Mapping[str, Sequence[InputTensor | None]],
        batch: Step | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        *,
        reads_step: bool = False,
        seed: int = 0,
        overload: str = "",
    ) -> None:
        """Takes what was materialised.

        Args:
            op: Name of the operator that runs.
            values: The value of every argument, in schema order.
            tensors: The elements of every argument that is a tensor or a list with tensors.
            batch: What the engine wrote about the step of the call.
            parameters: Values of the parameters that the recipe declares.
            reads_step: Whether the recipe declares that it reads the step.
            seed: Seed of the run.
            overload: Name of the overload that runs.
        """
        self.op = op
        """Name of the operator that runs, without overload."""
        self.overload = overload
        """Name of its overload; empty for the default one."""
        self.seed = seed
        """Seed of the run, for what the table builders draw."""
        self._batch = batch
        self._reads_step = reads_step
        self._parameters = parameters or {}
        self._values = dict(values)
        self._tensors = dict(tensors)
        self._replaced: dict[str, torch.Tensor] = {}
        self._produced: dict[str, tuple[torch.Tensor | int, str | None]] = {}
        self._assumptions: list[str] = []

    @property
    def batch(self) -> Step | None:
        """What the engine wrote about the step of the call; None where it wrote nothing.

        Raises:
            RecipeError: The recipe doesn't declare that it reads the step, so that calls of all
                steps stand on one row.
        """
        if not self._reads_step:
            raise RecipeError(
                f"the recipe for {self.op} reads the step: register it with reads_step=True"
            )
        return self._batch

    @property
    def replaced(self) -> Mapping[str, torch.Tensor]:
        """The arguments that the recipe made anew, by name."""
        return self._replaced

    @property
    def produced(self) -> Mapping[str, tuple[torch.Tensor | int, str | None]]:
        """What the recipe gave to `replace`, and the operator that releases it."""
        return self._produced

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Each guess of the recipe, one sentence each."""
        return tuple(self._assumptions)

    def parameter(self, name: str) -> ParameterValue:
        """Returns the value of a parameter that the recipe declares."""
        return self._parameters[name]

    def choose(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Sets the values of parameters, for a recipe that runs another one on its call."""
        self._parameters = parameters

    def assume(self, sentence: str) -> None:
        """Tells the user of a guess that the trace does not confirm."""
        self._assumptions.append(sentence)

    def replace(self, name: str, made: torch.Tensor | int, *, release: str | None = None) -> None:
        """Puts what another operator made in the place of a tensor argument.

        Args:
            name: The argument.
            made: A tensor, whose sizes may differ from the recorded ones, or a handle, which
                becomes an int64 tensor without dimensions. Either is an output of `run_operator`.
            release: Operator that takes the handle once nothing refers to the argument any more,
                the timed call included.

        Raises:
            RecipeError: The operator has no tensor argument of that name.
        """
        self.tensor(name).leave_unfilled()
        value = torch.tensor(made, dtype=torch.int64) if isinstance(made, int) else made
        self._values[name] = self._replaced[name] = value
        self._produced[name] = made, release
        if release is not None:
            # At the end of the process there is nothing left to release it from.
            weakref.finalize(value, run_operator, release, made).atexit = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arguments, in schema order."""
        return tuple(self._values)

    def named(self, *names: str) -> list[str]:
        """Returns the arguments that have one of some names, whatever their case, in that order.

        Libraries call the same argument by several names; None counts as there.
        """
        there = {name.lower(): name for name in self.names}
        return [there[name.lower()] for name in names if name.lower() in there]

    def require(self, *names: str) -> str:
        """Returns the first argument that has one of some names, whatever their case.

        Raises:
            RecipeError: The operator has none of them.
        """
        if found := self.named(*names):
            return found[0]
        raise RecipeError(
            f"{self.op} has no argument {' or '.join(map(repr, names))}; "
            f"it has {', '.join(self.names) or 'none'}"
        )

    def has(self, name: str) -> bool:
        """Tells whether there is an argument of that name and it is not None."""
        return self._values.get(name) is not None

    def has_tensor(self, name: str) -> bool:
        """Tells whether there is an argument of that name and it is one tensor."""
        return isinstance(self._values.get(name), torch.Tensor)

    def value(self, name: str) -> Any:
        """Returns an argument that is no tensor.

        Raises:
            RecipeError: The operator has no argument of that name.
        """
        if name not in self._values:
            raise RecipeError(
                f"{self.op} has no argument {name!r}; it has {', '.join(self.names) or 'none'}"
            )
        return self._values[name]

    def tensor(self, name: str) -> InputTensor:
        """Returns a tensor argument.

        Raises:
            RecipeError: The operator has no argument of that name, or it is not one tensor.
        """
        value = self.value(name)
        if isinstance(value, torch.Tensor):
            for tensor in self._tensors[name]:
                if tensor is not None:
                    return tensor
        raise RecipeError(f"argument {name!r} of {self.op} is {_kind(value)}, not a tensor")

    def tensors(self, name: str) -> tuple[InputTensor | None, ...]:
        """Returns the elements of a tensor list; None where the list holds None.

        Raises:
            RecipeError: The operator has no argument of that name, or it is not a tensor list.
        """
        value = self.value(name)
        if not isinstance(value, list) or (value and name not in self._tensors):
            raise RecipeError(
                f"argument {name!r} of {self.op} is {_kind(value)}, not a tensor list"
            )
        return tuple(self._tensors.get(name, ()))

    def elements_of(self, name: str) -> Sequence[InputTensor | None]:
        """Returns the tensors of an argument, one place for each element; empty without any."""
        return self._tensors.get(name, ())

    def present(self, *names: str) -> list[InputTensor]:
        """Returns the tensors, those in lists too, of the arguments that exist and are not None."""
        return [
            tensor for name in names for tensor in self._tensors.get(name, ()) if tensor is not None
        ]

    def fill_floats(self, low: float, high: float, *names: str) -> list[str]:
        """Fills float tensors, those in lists too, and returns the names of the filled arguments.

        Names that the operator does not have, integers and None are passed over, so that one list
        of names serves a family of operators.
        """
        filled = []
        for name in names:
            real = [tensor for tensor in self.present(name) if tensor.is_real]
            for tensor in real:
                tensor.fill_floats(low, high)
            if real:
                filled.append(name)
        return filled


def run_operator(op: str, *arguments: Any, **named: Any) -> Any:
    """Runs an operator of this process, to make what neither dims nor a seed can tell.

    Args:
        op: Exact name, ``"namespace::name"``, of the default overload.
        arguments: Its first arguments in schema order.
        named: The others, by the names of the schema.

    Raises:
        RecipeError: This process has no such operator.
    """
    namespace, _, name = op.partition("::")
    try:
        operator = getattr(getattr(torch.ops, namespace), name).default
    except AttributeError as error:
        raise RecipeError(f"{op}, which makes an argument, is not in this process") from error
    return operator(*arguments, **named)


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the least and the greatest value of an integer dtype."""
    info = torch.iinfo(dtype)
    return info.min, info.max


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tells whether a dimension steps to places that the smaller strides reach already."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _scattering_step(count: int) -> int:
    """Returns a step that visits every value below count before it repeats one.

    It shares no factor with count, and lies about the golden section of it, so that neighbours in
    the result lie far apart in memory.
    """
    step = max(1, round(count * 0.381966))
    while math.gcd(step, count) > 1:
        step += 1
    return step


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
