"""Floating point operations of a call: an operator and arguments come in, a count goes out.

The formulas are those of `torch.utils.flop_counter`: a multiplication and an addition are two, and
what has no formula (element-wise work, reductions) counts as nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = ["count_flops"]


# torch gives the class's constructor no types.
class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what runs inside; torch's own `FlopCounterMode` imports torch.compile: a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports torch.compile all the same, to keep it out of here

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def count_flops(operator: OpOverload, arguments: Sequence[Any]) -> int | None:
    """Counts the floating point operations that a call stands for.

    An operator of aten runs once on tensors without memory, so that one made of others
    (``aten::linear``) counts what these do. Operators of libraries might read memory that is not
    there: they are counted from the sizes of their arguments, where they registered a formula.

    Args:
        operator: What is called.
        arguments: Its arguments in schema order; no value is read.

    Returns:
        The operations; None where torch has no formula for the operator or for any inside it.
    """
    packet = operator.overloadpacket
    of_aten = operator.namespace == "aten"
    of_others = operator.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    if packet not in flop_registry and not (of_aten and of_others):
        return None
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter, value in zip(operator._schema.arguments, arguments, strict=True):
        if parameter.kwarg_only:
            by_name[parameter.name] = _without_memory(value)
        else:
            positional.append(_without_memory(value))
    try:
        if not of_aten:
            return int(flop_registry[packet](*positional, **by_name)) or None
        counter = _Counter()
        with warnings.catch_warnings(), torch.inference_mode(mode=False), torch.no_grad(), counter:
            warnings.simplefilter("ignore")  # the call itself gives them again
            operator(*positional, **by_name)
        return counter.total or None
    except Exception:  # It cannot run without values, or its formula wants what was not recorded.
        return None


def _without_memory(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_memory(element) for element in value]
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value
