"""Plain references for the MoE tables, written from the specifications; slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Row = list[int]


@dataclass(frozen=True)
class Sorted:
    """A table as lists: entries, weights, expert of each block, entries of valid blocks."""

    ids: list[int]
    weights: list[float]
    experts: list[int]
    total: int


def sort_pairs(
    rows: list[Row],
    bins: dict[int, int],
    *,
    block: int,
    length: int,
    entry,
    padding: int,
    unused: int,
    name=lambda expert: expert,
    weights: list[list[float]] | None = None,
) -> Sorted:
    """For each bin in turn its pairs in order, then padding to whole blocks."""
    ids: list[int] = []
    sorted_weights: list[float] = []
    experts: list[int] = []
    for bin_ in sorted(set(bins.values())):
        mine = [
            (token, slot)
            for token, row in enumerate(rows)
            for slot, expert in enumerate(row)
            if bins.get(expert) == bin_
        ]
        for token, slot in mine:
            ids.append(entry(token, slot))
            sorted_weights.append(weights[token][slot] if weights else 0.0)
        while len(ids) % block:
            ids.append(padding)
            sorted_weights.append(0.0)
        experts += [name(bin_)] * (len(ids) // block - len(experts))
    total = len(ids)
    blocks = -(-length // block)
    ids += [padding] * (length - total)
    sorted_weights += [0.0] * (length - total)
    experts += [unused] * (blocks - len(experts))
    return Sorted(ids, sorted_weights, experts, total)


def align(
    rows: list[Row],
    experts: int,
    block: int,
    *,
    expert_map: list[int] | None = None,
    foreign: str = "drop",
    unused: int = -1,
) -> Sorted:
    """moe_align_block_size of vLLM and SGLang, each expert ascending."""
    top_k = len(rows[0]) if rows else 1
    pairs = len(rows) * top_k
    bins = {expert: expert for expert in range(experts)}
    name = int
    if expert_map is not None and foreign == "drop":
        bins = {expert: local for expert, local in enumerate(expert_map) if local >= 0}
    elif expert_map is not None:
        name = expert_map.__getitem__
        unused = expert_map[unused] if unused >= 0 else unused
    return sort_pairs(
        rows,
        bins,
        block=block,
        length=pairs + experts * (block - 1),
        entry=lambda token, slot: token * top_k + slot,
        padding=pairs,
        unused=unused,
        name=name,
    )


def aiter_sorting(
    rows: list[Row],
    weights: list[list[float]],
    top_k: int,
    experts: int,
    block: int,
    *,
    mask: list[int] | None = None,
    local_tokens: int | None = None,
    sentinel: str = "topk_m",
    unused: int = -1,
) -> Sorted:
    """moe_sorting of aiter and CK."""
    tokens = len(rows) if local_tokens is None else local_tokens
    here = [e for e in range(experts if mask is None else len(mask)) if mask is None or mask[e]]
    return sort_pairs(
        rows[:tokens],
        {expert: local for local, expert in enumerate(here)},
        block=block,
        length=max(0, len(rows) * top_k + experts * block - top_k),
        entry=lambda token, slot: slot << 24 | token,
        padding=(top_k << 24 | tokens) if sentinel == "topk_m" else tokens,
        unused=unused,
        weights=weights,
    )


def ids_of(rows: list[Row], top_k: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Rows as topk_ids, also when there are none."""
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), top_k).to(dtype)
