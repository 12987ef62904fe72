"""Sequence bounds and masks of attention."""

from __future__ import annotations

import torch

from opreplay.recipes.attention import (
    BLOCK_TABLES,
    LONGEST_KEYS,
    LONGEST_QUERY,
    choose_paged,
    number_named,
    read_pool,
    tensor_named,
    write_keys,
    write_queries,
)
from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import choose_rows

__all__: list[str] = []


@recipe(
    "aten::_flash_attention_forward",
    "aten::_flash_attention_forward_no_dropout_inplace",
    "aten::_flash_attention_backward",
    "aten::_cudnn_attention_forward",
    "aten::_cudnn_attention_backward",
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
    reads_step=True,
    pools=Pools(("key", "value"), BLOCK_TABLES),
)
def varlen_attention(call: RecipeCall) -> str | None:
    """Sequences fill the rows there are; the longest is as long as recorded, the others equal."""
    call.fill_floats(0.5, 1.5, "logsumexp", "q_descale", "k_descale", "v_descale")
    query = call.tensor("query").dims
    starts = tensor_named(call, ("cum_seq_q", "cu_seqlens_q"))
    # The backward of dense attention takes empty tensors.
    ragged = starts is not None and starts.numel > 1
    sequences = starts.numel - 1 if starts is not None and ragged else query[0]
    if tensor_named(call, BLOCK_TABLES) is not None:
        pool = read_pool(call, "key", rank=4, block_dim=1)
        batch = choose_paged(call, pool, sequences, _rows(query))
        told = write_keys(call, batch, pool)
    elif ragged:
        batch = choose_rows(
            call,
            sequences,
            _rows(query),
            _rows(call.tensor("key").dims),
            longest_query=number_named(call, LONGEST_QUERY),
            longest_keys=number_named(call, LONGEST_KEYS),
        )
        told = write_keys(call, batch, None)
    else:
        return None
    if ragged:
        write_queries(call, batch)
    return f"{batch}; {told}"


def _rows(dims: tuple[int, ...]) -> int:
    """Returns the rows of all sequences; packed efficient attention has a batch of one before."""
    return dims[0] if len(dims) == 3 else dims[0] * dims[1]


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
