"""What resolving hands on: an operator of the dispatcher with typed arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from opreplay.trace.steps import Step

if TYPE_CHECKING:
    import torch

__all__ = ["Argument", "ResolvedCall", "TensorSpec", "TorchValue", "Value"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be made: everything but its values."""

    dtype: torch.dtype
    """Element type."""
    dims: tuple[int, ...]
    """Sizes."""
    strides: tuple[int, ...]
    """Strides in elements; may be zero or overlap."""
    storage_numel: int
    """Elements that the storage must hold, at least what dims and strides reach."""
    storage: tuple[int, int] | None = None
    """Number within the call of a storage that several tensors share, and the tensor's offset in
    it [elements]; None for a storage of its own."""
    contents: tuple[int, ...] | None = None
    """Elements where the trace holds them, the last dimension running fastest; a plan does not."""
    true_elements: int | None = None
    """Number of elements of a mask that are true, where the trace tells it."""


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A non-tensor value whose Python form depends on torch.

    `kind` says how to read `text`: a dtype ("bfloat16"), layout ("strided"), memory format
    ("contiguous_format"), device ("cuda", replaced by the run's device) or generator ("").
    """

    kind: Literal["dtype", "layout", "memory_format", "device", "generator"]
    text: str


Value = TensorSpec | TorchValue | tuple["Value", ...] | int | float | complex | bool | str | None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a resolved call."""

    name: str
    """Name in the schema; ``"argument_3"`` where there is no schema."""
    type: str
    """Schema type without alias annotations, for instance ``"Tensor"`` or ``"int[]"``."""
    value: Value
    """The tensor to make, or the value itself. A tuple for every kind of list."""
    written: bool
    """True if the schema says that the operator writes to it (``Tensor(a!)``)."""
    output: bool
    """True if it is a pure output buffer (an ``out=`` argument): its contents don't matter."""


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """A call that can be given inputs and run."""

    op: str
    """Operator name as recorded."""
    resolved_op: str
    """Operator name that runs; differs from `op` where the operator was renamed."""
    overload: str
    """Overload name; empty for the default overload."""
    schema: str | None
    """Schema text; None for a plain Python callable that has no schema."""
    arguments: tuple[Argument, ...]
    """All arguments in schema order, defaults filled in."""
    assumptions: tuple[str, ...]
    """Each guess that was made, one sentence each."""
    rejected: tuple[tuple[str, str], ...]
    """Other schemas of the name, each with the reason why it does not fit."""
    needs_autograd: bool = False
    """True if the operator's only kernel sits at autograd: it then runs under no-grad mode."""
    batch: Step | None = None
    """What the engine wrote about the batch of the step; None where it wrote nothing."""
    recipe_parameters: Mapping[str, str] = field(default_factory=dict)
    """What a plan sets for the recipe, by name, as text; the user's settings beat it."""
