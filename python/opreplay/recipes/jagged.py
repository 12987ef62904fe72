"""Offsets of jagged tensors: ascending, level by level, to the rows that there are."""

from __future__ import annotations

import math

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    "aten::_jagged_to_padded_dense_forward",
    "fbgemm::jagged_to_padded_dense",
    "fbgemm::jagged_to_padded_dense_forward",
)
def jagged_to_padded_dense(call: RecipeCall) -> str:
    """Offsets ascend to the rows of the values."""
    rows = call.tensor("values").dims[0]
    return _write_offsets(call, "offsets", rows, call.value("max_lengths"))


@recipe("aten::_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(call: RecipeCall) -> str:
    """Offsets ascend to the recorded rows; where none are, every sequence is full."""
    return _from_dense(call, "offsets")


@recipe("fbgemm::dense_to_jagged", "fbgemm::dense_to_jagged_forward")
def dense_to_jagged(call: RecipeCall) -> str:
    """Offsets ascend to the recorded rows; where none are, every sequence is full."""
    return _from_dense(call, "x_offsets")


def _from_dense(call: RecipeCall, name: str) -> str:
    levels = len(call.tensors(name))
    dims = call.tensor("dense").dims[: 1 + levels]
    rows = call.value("total_L") if call.has("total_L") else math.prod(dims)
    return _write_offsets(call, name, rows, dims[1:])


def _write_offsets(
    call: RecipeCall, name: str, rows: int, longest: list[int] | tuple[int, ...]
) -> str:
    """Writes offsets: the last of each level is the number of sequences of the next one."""
    levels = [offsets for offsets in call.tensors(name) if offsets is not None]
    ends = [offsets.numel - 1 for offsets in levels[1:]] + [rows]
    for offsets, end, most in zip(levels, ends, longest, strict=True):
        lengths = split(end, offsets.numel - 1)
        if max(lengths, default=0) > most:
            raise RecipeError(f"{end} rows do not fit {len(lengths)} sequences of at most {most}")
        offsets.write_list(starts(lengths))
    return f"offsets ascend to {rows}, lengths equal"
