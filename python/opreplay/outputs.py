"""What a call computes: a prepared call comes in; its outputs, or how they differ, come out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from opreplay import _C
from opreplay.inputs import Inputs
from opreplay.outcome import ResultCheck
from opreplay.report.comparison import OutputCheck
from opreplay.resolve.call import ResolvedCall

__all__ = ["compare_outputs", "compute", "judge", "outputs_file"]

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


def judge(
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    *,
    reference: Path | None,
    tolerance: tuple[float, float] | None,
) -> ResultCheck:
    """Says what is wrong with outputs.

    Args:
        first: Outputs of a call.
        second: Outputs of the same call with equal inputs.
        reference: File of saved outputs that they shall equal.
        tolerance: Relative and absolute, towards the reference; None takes those of each dtype.
    """
    wrong = []
    finite = all(bool(_widened(one).isfinite().all()) for one in first if _has_infinities(one))
    if not finite:
        wrong.append("an output is not finite")
    again = compare_outputs(first, second, (0.0, 0.0))
    if not again.within:
        wrong.append(f"a second run with equal inputs differs: {again.detail}")
    equal = None
    if reference is not None:
        found = _compare_saved(first, reference, tolerance)
        equal = found.within
        wrong += [] if equal else [f"against the reference: {found.detail}"]
    return ResultCheck(finite, again.within, equal, "; ".join(wrong))


def outputs_file(directory: str, signature: str, step: str | None) -> Path:
    """Where the outputs of a call are saved: a name for each signature and step."""
    suffix = "" if step is None else f"-{hashlib.sha256(step.encode()).hexdigest()[:8]}"
    return Path(directory) / f"{signature}{suffix}.pt"


def _compare_saved(
    found: Sequence[torch.Tensor], path: Path, tolerance: tuple[float, float] | None
) -> OutputCheck:
    if not path.is_file():
        return OutputCheck(False, f"there is no {path}")
    saved: list[torch.Tensor] = torch.load(path, weights_only=True)
    return compare_outputs(saved, [tensor.cpu() for tensor in found], tolerance)


def _has_infinities(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


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
