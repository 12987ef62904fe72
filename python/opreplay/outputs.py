"""What a call computes: a prepared call comes in; its outputs, or how they differ, come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from opreplay import _C
from opreplay.inputs import Inputs
from opreplay.report.comparison import OutputCheck
from opreplay.resolve.call import ResolvedCall

__all__ = ["compare_outputs", "compute"]

_MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
}


def compute(
    resolved: ResolvedCall,
    inputs: Inputs,
    call: _C.Call | Callable[[], object],
    *,
    mode: str,
    seed: int,
) -> list[torch.Tensor]:
    """Makes one call; returns copies of what it returned and of the arguments that it wrote to.

    Args:
        resolved: The operator and its typed arguments.
        inputs: What the arguments hold; those that the operator writes to are changed.
        call: What makes the call.
        mode: "inference", "no_grad" or "grad".
        seed: Of operators that draw numbers.
    """
    torch.manual_seed(seed)
    if isinstance(call, _C.Call):
        returned: object = call.run(mode)
    else:
        with _MODES[mode]():
            returned = call()
    written = [
        value
        for argument, value in zip(resolved.arguments, inputs.arguments, strict=True)
        if argument.written
    ]
    return [tensor.detach().clone() for tensor in _tensors([returned, written])]


def compare_outputs(
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    tolerance: tuple[float, float] | None,
) -> OutputCheck:
    """Compares outputs one by one; NaN equals NaN.

    Args:
        ours: What is right.
        theirs: What is to be checked.
        tolerance: Relative and absolute; None takes those of `torch.testing` for each dtype.
    """
    if len(ours) != len(theirs):
        return OutputCheck(False, f"{len(theirs)} outputs instead of {len(ours)}")
    relative, absolute = tolerance or (None, None)
    for place, (right, found) in enumerate(zip(ours, theirs, strict=True)):
        try:
            torch.testing.assert_close(
                _widened(found), _widened(right), rtol=relative, atol=absolute, equal_nan=True
            )
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return OutputCheck(False, f"output {place} differs: {'; '.join(lines[1:] or lines)}")
    return OutputCheck(True, "")


def _tensors(values: object) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, bool | int | float | complex):
        yield torch.tensor(values)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Eight-bit floats have no comparisons of their own."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
