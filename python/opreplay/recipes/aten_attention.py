"""Sequence bounds and masks of attention."""

from __future__ import annotations

import torch

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    "aten::_flash_attention_forward",
    "aten::_flash_attention_forward_no_dropout_inplace",
    "aten::_flash_attention_backward",
    "aten::_cudnn_attention_forward",
    "aten::_cudnn_attention_backward",
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
)
def varlen_attention(call: RecipeCall) -> str | None:
    """Sequences fill the rows there are; the longest is as long as recorded, the others equal."""
    told = [
        *_bounds(call, "query", ("cum_seq_q", "cu_seqlens_q"), ("max_q", "max_seqlen_q")),
        *_bounds(call, "key", ("cum_seq_k", "cu_seqlens_k"), ("max_k", "max_seqlen_k")),
    ]
    for used in call.present("seqused_k", "seqlen_k"):
        longest = _longest(call, ("max_k", "max_seqlen_k"))
        length = longest or max(1, _rows(call, "key") // max(used.numel, 1))
        used.fill_integers(length, length + 1)
        told.append(f"{length} keys used of each sequence")
    for table in call.present("block_table"):
        blocks = call.tensor("key").dims[0]
        table.write_distinct(blocks)
        told.append(f"blocks distinct in [0, {blocks})")
    call.fill_floats(0.5, 1.5, "logsumexp", "q_descale", "k_descale", "v_descale")
    return "; ".join(told) or None


def _bounds(
    call: RecipeCall, side: str, names: tuple[str, ...], longest: tuple[str, ...]
) -> list[str]:
    """Writes where each sequence of one side starts and the last ends; tells their lengths."""
    told = []
    for bounds in call.present(*names):
        if bounds.numel < 2:  # The backward of dense attention takes empty tensors.
            continue
        lengths = split(_rows(call, side), bounds.numel - 1, longest=_longest(call, longest))
        bounds.write_list(starts(lengths))
        told.append(f"{len(lengths)} {side} sequences of {lengths[-1]} to {lengths[0]}")
    return told


def _rows(call: RecipeCall, side: str) -> int:
    """Returns the rows of all sequences; packed efficient attention has a batch of one before."""
    dims = call.tensor(side).dims
    return dims[0] if len(dims) == 3 else dims[0] * dims[1]


def _longest(call: RecipeCall, names: tuple[str, ...]) -> int | None:
    """Returns the recorded length of the longest sequence; None where none is."""
    return next((int(call.value(name)) for name in names if call.has(name)), None)


@recipe(
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_attention_math_for_mps",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_fused_sdp_choice",
)
def attention_mask(call: RecipeCall) -> str | None:
    """A mask of bools shows each query the keys up to its own position, counted from the end."""
    told = None
    for mask in call.present("attn_mask", "attn_bias"):
        if mask.dtype is torch.bool and len(mask.dims) >= 2:
            queries, keys = mask.dims[-2:]
            row = torch.arange(queries, device=mask.device)[:, None]
            column = torch.arange(keys, device=mask.device)
            causal = column <= row + max(keys - queries, 0)
            mask.write(causal.expand(mask.dims))
            told = "mask is causal"
    call.fill_floats(0.5, 1.5, "logsumexp")
    return told
