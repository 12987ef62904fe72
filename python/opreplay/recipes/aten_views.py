"""Operators that read sizes alone, not values: their tensors stay as allocated."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []

_VIEWS = (
    # Always a view: those that copy where they must (reshape, contiguous, flatten) are not here.
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "as_strided_", "chunk", "detach"),
    *("detach_", "diagonal", "expand", "expand_as", "movedim", "numpy_T", "permute"),
    *("select", "slice", "split", "split_with_sizes", "squeeze", "squeeze_", "swapaxes", "t", "t_"),
    *("transpose", "transpose_", "unbind", "unfold", "unsafe_chunk"),
    *("unsafe_split", "unsqueeze", "unsqueeze_", "view", "view_as", "view_as_complex"),
    "view_as_real",
)
_MAKERS = (
    *("empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones"),
    *("new_zeros", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"),
)
_QUESTIONS = ("is_floating_point", "is_same_size", "result_type", "size", "stride", "sym_size")


@recipe(*(f"aten::{name}" for name in (*_VIEWS, *_MAKERS, *_QUESTIONS)))
def reads_sizes(call: RecipeCall) -> None:
    """Leaves its tensors alone: filling a cache of gigabytes to take a view costs seconds."""
    for tensor in call.present("self", "other", "tensor", "tensor1", "tensor2"):
        tensor.leave_unfilled()
