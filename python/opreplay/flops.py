"""Floating point operations of a call: its operator and arguments come in, a count goes out.

The formulas are those of `torch.utils.flop_counter`: a multiplication and an addition are two, and
what has no formula (element-wise work, reductions) counts as nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from opreplay.resolve.call import ResolvedCall

__all__ = ["count_flops"]


def count_flops(call: ResolvedCall, arguments: Sequence[Any]) -> int | None:
    """Counts the floating point operations that a call stands for.

    An operator of aten runs once on tensors without memory, so that one made of others
    (``aten::linear``) counts what these do. Operators of libraries might read memory that is not
    there: they are counted from the sizes of their arguments, where they registered a formula.

    Args:
        call: The call.
        arguments: Its arguments in schema order; no value is read.

    Returns:
        The operations; None where torch has no formula for the operator or for any inside it.
    """
    if call.schema is None:
        return None
    namespace, _, name = call.resolved_op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    if namespace != "aten" and packet not in flop_registry:
        return None
    operator = getattr(packet, call.overload or "default")
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter, value in zip(operator._schema.arguments, arguments, strict=True):
        if parameter.kwarg_only:
            by_name[parameter.name] = _without_memory(value)
        else:
            positional.append(_without_memory(value))
    try:
        if namespace != "aten":
            return int(flop_registry[packet](*positional, **by_name)) or None
        counter = FlopCounterMode(display=False)
        with warnings.catch_warnings(), torch.no_grad(), counter:
            warnings.simplefilter("ignore")  # the call itself gives them again
            operator(*positional, **by_name)
        return counter.get_total_flops() or None
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
