"""Writes of new tokens into a paged cache: slots that exist, none twice."""

from __future__ import annotations

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.registry import recipe
from opreplay.tables import block

__all__ = ["write_slots"]


@recipe("_C_cache_ops::reshape_and_cache", "_C::reshape_and_cache", reads_step=True)
def reshape_and_cache(call: RecipeCall) -> str:
    """Slots of a cache [blocks, heads, D / x, block, x]."""
    return _slots(call, "key_cache", rank=5, block_dim=3)


@recipe("_C_cache_ops::reshape_and_cache_flash", "_C::reshape_and_cache_flash", reads_step=True)
def reshape_and_cache_flash(call: RecipeCall) -> str:
    """Slots of a cache [blocks, block, heads, D]."""
    return _slots(call, "key_cache", rank=4, block_dim=1)


@recipe("_C_cache_ops::concat_and_cache_mla", "_C::concat_and_cache_mla", reads_step=True)
def concat_and_cache_mla(call: RecipeCall) -> str:
    """Slots of a cache [blocks, block, D]."""
    return _slots(call, "kv_cache", rank=3, block_dim=1)


@recipe("_C::cpu_attn_reshape_and_cache", reads_step=True)
def cpu_attn_reshape_and_cache(call: RecipeCall) -> str:
    """Slots of a cache [blocks, heads, block, D]."""
    return _slots(call, "key_cache", rank=4, block_dim=2)


def _slots(call: RecipeCall, name: str, *, rank: int, block_dim: int) -> str:
    dims = call.tensor(name).dims
    if len(dims) != rank:
        raise RecipeError(f"{name} has {rank} dimensions, recorded is {dims}")
    call.fill_floats(0.5, 1.5, "k_scale", "v_scale", "scale")
    return write_slots(call, "slot_mapping", dims[0], dims[block_dim])


def write_slots(call: RecipeCall, name: str, blocks: int, block_size: int) -> str:
    """Writes slots: each sequence has blocks of its own and its tokens fill them in order.

    Generating sequences write a token each, wherever they are; one prompt writes all of its blocks.

    Raises:
        RecipeError: There are more tokens than slots.
    """
    slots = call.tensor(name)
    tokens = slots.numel
    needed = -(-tokens // block_size)
    if needed > blocks:
        raise RecipeError(f"{tokens} tokens for a cache of {blocks * block_size} slots")
    step = call.batch
    if step is not None and step.generation.sequences == tokens <= blocks:
        lengths = torch.ones(tokens, dtype=torch.int32)
    else:
        lengths = torch.tensor([tokens], dtype=torch.int32)
    width = max(1, int(-(-lengths // block_size).max()) if tokens else 1)
    table = block.block_table(lengths, block_size, blocks, width=width).table
    made = block.slot_mapping(table, lengths, lengths, block_size, total=tokens, dtype=slots.dtype)
    slots.write(made.view(slots.dims))
    return f"{tokens} slots distinct in [0, {blocks * block_size})"
