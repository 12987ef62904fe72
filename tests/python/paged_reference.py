"""Paged attention and the write of its cache, a token at a time, as the layouts define them.

Keys are [blocks, heads, D / x, block, x], values [blocks, heads, D, block]: csrc/attention and
csrc/cache_kernels.cu of vLLM.
"""

from __future__ import annotations

import torch


def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, *scales):
    """Writes each token where its slot says; negative slots are skipped."""
    _, heads, parts, block_size, x = key_cache.shape
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            key_cache[block, :, :, offset] = key[token].view(heads, parts, x)
            value_cache[block, :, :, offset] = value[token]


def paged_attention(
    out, query, key_cache, value_cache, kv_heads, scale, block_tables, seq_lens, block_size, *rest
):
    """One query for each sequence; its keys are looked up one by one."""
    group = query.size(1) // kv_heads
    for sequence, length in enumerate(seq_lens.tolist()):
        places = [
            (int(block_tables[sequence, token // block_size]), token % block_size)
            for token in range(length)
        ]
        for head in range(query.size(1)):
            keys = torch.stack([key_cache[b, head // group, :, o].flatten() for b, o in places])
            values = torch.stack([value_cache[b, head // group, :, o] for b, o in places])
            weights = torch.softmax(keys @ query[sequence, head] * scale, dim=0)
            out[sequence, head] = weights @ values
