"""Builds MoE routing and the tables that MoE kernels sort it into: sizes in, int32 tensors out.

Every builder runs where its tensors are, gives the same bits on every device, and has an ``out=``
form that fills recorded buffers in place. On the CPU a table that does not fit, or an id that is no
expert, raises ``ValueError``. On a device that is known only there: the call then reads the table's
``status``, which synchronises once, unless a graph is being captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from opreplay import _C  # noqa: F401  (registers torch.ops.opreplay)
from opreplay.tables.load import LoadStats, load_stats, read_histogram

__all__ = [
    "GroupedGemm",
    "MoeAlignTable",
    "MoeSortingTable",
    "Routing",
    "batched_moe_align_block_size",
    "grouped_gemm",
    "moe_align_block_size",
    "moe_sorting",
    "routing_table",
    "topk_routing",
]

Distribution: TypeAlias = Literal[
    "uniform", "zipf", "hot", "balanced", "histogram", "power_law", "one_hot"
]
Histogram: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | np.ndarray[Any, Any] | Tensor

_PACKED_TOKEN = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts the tokens go to."""

    topk_ids: Tensor
    """int32 [M, K], or [layers, M, K]; distinct within a row."""
    topk_weights: Tensor
    """float32, same shape; positive, rows sum to one."""
    num_experts: int
    """Experts that ids may name, shared ones included."""

    def stats(self, *, layer: int | None = None, ranks: int = 1) -> LoadStats:
        """Returns how the experts are loaded; of a routing with layers, in one of them."""
        ids = self.topk_ids
        if ids.dim() == 3:
            if layer is None or not 0 <= layer < ids.size(0):
                raise ValueError(f"expected layer in [0, {ids.size(0)}), got {layer}")
            ids = ids[layer]
        return load_stats(torch.bincount(ids.flatten(), minlength=self.num_experts), ranks=ranks)


@dataclass(frozen=True, slots=True)
class MoeAlignTable:
    """Pairs sorted by expert, in the layout of vLLM and SGLang."""

    sorted_token_ids: Tensor
    """int32 [length]: ``token * K + slot``; padding is ``M * K``."""
    expert_ids: Tensor
    """int32 [blocks]: the expert of each block."""
    num_tokens_post_padded: Tensor
    """int32 [1]: entries of all valid blocks."""
    status: Tensor
    """int32: all zero if the table is good."""
    num_experts: int
    block_size: int
    padding: int
    """The entry that stands for no pair."""

    def stats(self, *, ranks: int = 1) -> LoadStats:
        """Returns how the experts here are loaded."""
        real = self.sorted_token_ids != self.padding
        return _block_stats(
            real,
            self.expert_ids,
            self.num_tokens_post_padded,
            self.block_size,
            self.num_experts,
            ranks,
        )


@dataclass(frozen=True, slots=True)
class MoeSortingTable:
    """Pairs sorted by expert, in the layout of aiter and CK."""

    sorted_ids: Tensor
    """int32 [length]: ``slot << 24 | token``."""
    sorted_weights: Tensor
    """float32 [length]: the pair's weight, 0 in padding."""
    sorted_expert_ids: Tensor
    """int32 [blocks]: the expert of each block, by its number on this rank."""
    num_valid_ids: Tensor
    """int32 [2]: entries of all valid blocks, and tokens; older engines have the first alone."""
    status: Tensor
    """int32: all zero if the table is good."""
    num_experts: int
    block_size: int
    num_tokens: int

    def stats(self, *, ranks: int = 1) -> LoadStats:
        """Returns how the experts here are loaded."""
        tokens = self.num_valid_ids[1] if self.num_valid_ids.numel() > 1 else self.num_tokens
        real = (self.sorted_ids & _PACKED_TOKEN) < tokens
        return _block_stats(
            real,
            self.sorted_expert_ids,
            self.num_valid_ids,
            self.block_size,
            self.num_experts,
            ranks,
        )


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """Rows of a grouped GEMM: the pairs, expert after expert."""

    offsets_inclusive: Tensor
    """int32 [E]: where each expert's rows end."""
    offsets_exclusive: Tensor
    """int32 [E + 1]: where each expert's rows start, and the number of rows."""
    permutation: Tensor
    """int32 [rows]: the pair ``token * K + slot`` of each row; padding is ``M * K``."""
    inverse: Tensor
    """int32 [M, K]: the row of each pair."""
    tokens_per_expert: Tensor
    """int32 [E]: rows without padding, as masked kernels take them."""
    problem_sizes: Tensor | None
    """int32 [E, 3]: rows without padding, n, k."""
    status: Tensor
    """int32: all zero if the table is good."""

    def stats(self, *, ranks: int = 1) -> LoadStats:
        """Returns how the experts are loaded."""
        rows = int(self.offsets_inclusive[-1])
        return load_stats(self.tokens_per_expert, padded_rows=rows, ranks=ranks)


def topk_routing(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    *,
    distribution: Distribution = "uniform",
    s: float = 1.0,
    alpha: float = 1.01,
    hot: int = 0,
    histogram: Histogram | str | Path | None = None,
    ranks: int = 1,
    groups: tuple[int, int] | None = None,
    shared_experts: int = 0,
    layers: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    out: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
) -> Routing:
    """Draws ``top_k`` distinct experts for each token.

    ``uniform``, ``zipf`` and ``hot`` draw a token's experts one after the other without
    replacement, in proportion to their loads (Plackett-Luce), so that a hot expert gets less than
    its share. The others give every expert an exact number of tokens, spread over them at random.

    Args:
        num_tokens: M, rows of the result.
        num_experts: E, routed experts.
        top_k: K, routed experts of a token.
        distribution: ``uniform``; ``zipf``, the load of the r-th hottest expert is proportional to
            ``r ** -s``; ``hot``, all tokens on ``hot`` experts; ``balanced``, counts differ by at
            most one, also between the ``ranks``; ``histogram``, counts in proportion to the loads
            given, at most M for an expert; ``power_law``, counts from a density proportional to
            ``x ** -alpha`` on [1, 0.8 M]; ``one_hot``, every token on the same K experts. Which
            experts are hot is random.
        s: exponent of ``zipf``.
        alpha: exponent of ``power_law``.
        hot: active experts of ``hot``.
        histogram: loads [E] or [layers, E], or a JSON, CSV or npz file with them.
        ranks: ranks of ``balanced``, each with E / ranks neighbouring experts.
        groups: (n_group, topk_group): experts fall into n_group groups of neighbours, and a token's
            experts come from topk_group of them.
        shared_experts: experts that every token takes, with the ids from E on, appended to its row.
        layers: layers at once, each with hot experts of its own.
        seed: chooses the draw.
        device: where to draw. The few integers per expert that describe the distribution are copied
            there, which synchronises once; for a graph capture, make them before and give
            ``table``.
        out: topk_ids and topk_weights to fill.
        table: what :func:`routing_table` returned for the same arguments; needs ``out``.

    Raises:
        ValueError: an argument is out of range; the text names it and the limit.
    """
    n_group, topk_group = groups or (1, 1)
    options: dict[str, Any] = {
        "distribution": distribution,
        "s": s,
        "alpha": alpha,
        "hot": hot,
        "histogram": _loads(histogram),
        "ranks": ranks,
        "n_group": n_group,
        "topk_group": topk_group,
        "shared_experts": shared_experts,
        "layers": layers,
        "seed": seed,
    }
    if out is None:
        if table is not None:
            raise ValueError("a routing table given needs out, the tensors to fill")
        out = torch.ops.opreplay.topk_routing(
            num_tokens, num_experts, top_k, **options, device=torch.device(device)
        )
    else:
        topk_ids, topk_weights = out
        if topk_ids.dim() < 2 or topk_ids.size(-2) != num_tokens:
            raise ValueError(f"expected out for {num_tokens} tokens, got {topk_ids.shape = }")
        torch.ops.opreplay.topk_routing.out(
            num_experts,
            top_k,
            **options,
            table=table,
            topk_ids=topk_ids,
            topk_weights=topk_weights,
        )
    return Routing(out[0], out[1], num_experts + shared_experts)


def routing_table(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    *,
    distribution: Distribution = "uniform",
    s: float = 1.0,
    alpha: float = 1.01,
    hot: int = 0,
    histogram: Histogram | str | Path | None = None,
    ranks: int = 1,
    groups: tuple[int, int] | None = None,
    shared_experts: int = 0,
    layers: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Tensor:
    """Makes what :func:`topk_routing` draws from, so that a graph can capture the draw itself.

    A few int32 for each expert and layer, with the meaning of the arguments as there.
    """
    n_group, topk_group = groups or (1, 1)
    table: Tensor = torch.ops.opreplay.routing_table(
        num_tokens,
        num_experts,
        top_k,
        distribution=distribution,
        s=s,
        alpha=alpha,
        hot=hot,
        histogram=_loads(histogram),
        ranks=ranks,
        n_group=n_group,
        topk_group=topk_group,
        shared_experts=shared_experts,
        layers=layers,
        seed=seed,
        device=torch.device(device),
    )
    return table


def moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    *,
    expert_map: Tensor | None = None,
    foreign: Literal["drop", "mark"] = "drop",
    length: int | None = None,
    unused_expert: int = -1,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> MoeAlignTable:
    """Sorts pairs by expert in the layout of vLLM and SGLang.

    Each expert's pairs ascend and are padded to whole blocks; an expert without pairs has no block;
    ids outside [0, E) are left out, as the engines' kernels do.

    Args:
        topk_ids: [M, K] int32, int64 or uint32.
        num_experts: E, over all ranks.
        block_size: rows of a block.
        expert_map: int32 [E], the local id of each expert, negative for an expert of another rank.
        foreign: what becomes of pairs of other ranks: ``drop`` leaves them out and numbers blocks
            by local id; ``mark`` keeps them, and their blocks are called -1.
        length: entries of sorted_token_ids, by default M * K + E * (block_size - 1).
        unused_expert: what blocks past the last valid one are called; older engines have 0.
        out: sorted_token_ids, expert_ids, num_tokens_post_padded to fill, as long as they are.

    Raises:
        ValueError: an argument is out of range, or the table does not fit; the text says how far.
    """
    options: dict[str, Any] = {
        "expert_map": expert_map,
        "foreign": foreign,
        "unused_expert": unused_expert,
    }
    if out is None:
        ids, experts, padded, status = torch.ops.opreplay.moe_align_block_size(
            topk_ids, num_experts, block_size, length=length, **options
        )
        out = (ids, experts, padded)
    else:
        status = _new_status(topk_ids, _SORT_STATUS)
        torch.ops.opreplay.moe_align_block_size.out(
            topk_ids,
            num_experts,
            block_size,
            **options,
            sorted_token_ids=out[0],
            expert_ids=out[1],
            num_tokens_post_padded=out[2],
            status=status,
        )
    if _must_check(status):
        torch.ops.opreplay.check_moe_status(status)
    return MoeAlignTable(*out, status, num_experts, block_size, topk_ids.numel())


def batched_moe_align_block_size(
    max_tokens: int,
    block_size: int,
    expert_num_tokens: Tensor,
    *,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> MoeAlignTable:
    """Makes the block table of experts that hold their tokens in batches of ``max_tokens`` rows.

    An entry is ``expert * max_tokens + i``; padding is ``E * max_tokens``.

    Args:
        max_tokens: rows that each expert has room for.
        block_size: rows of a block.
        expert_num_tokens: int32 [E], rows that each expert has in use.
        out: sorted_token_ids, expert_ids, num_tokens_post_padded to fill, as long as they are.

    Raises:
        ValueError: a number of tokens is outside [0, max_tokens], or the table does not fit.
    """
    if out is None:
        ids, experts, padded, status = torch.ops.opreplay.batched_moe_align_block_size(
            max_tokens, block_size, expert_num_tokens
        )
        out = (ids, experts, padded)
    else:
        status = _new_status(expert_num_tokens, _BATCHED_STATUS)
        torch.ops.opreplay.batched_moe_align_block_size.out(
            max_tokens,
            block_size,
            expert_num_tokens,
            sorted_token_ids=out[0],
            expert_ids=out[1],
            num_tokens_post_padded=out[2],
            status=status,
        )
    if _must_check(status):
        torch.ops.opreplay.check_batched_status(status, max_tokens)
    num_experts = expert_num_tokens.numel()
    return MoeAlignTable(*out, status, num_experts, block_size, num_experts * max_tokens)


def moe_sorting(
    topk_ids: Tensor,
    topk_weights: Tensor,
    num_experts: int,
    block_size: int,
    *,
    expert_mask: Tensor | None = None,
    num_local_tokens: Tensor | None = None,
    length: int | None = None,
    sentinel: Literal["topk_m", "m"] = "topk_m",
    unused_expert: int = -1,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> MoeSortingTable:
    """Sorts pairs by expert in the layout of aiter and CK.

    Each expert's tokens ascend and are padded to whole blocks; an expert without tokens has no
    block. What the engines leave undefined past the last block is padding here.

    Args:
        topk_ids: [M, K] int32, int64 or uint32, distinct within a row; M < 2**24, K < 256.
        topk_weights: float32 [M, K].
        num_experts: E, by which buffers are measured.
        block_size: rows of a block.
        expert_mask: int32, one entry for each expert of all ranks: nonzero for those here.
        num_local_tokens: int32 [1], rows of topk_ids that count.
        length: entries of sorted_ids, by default M * K + E * block_size - K.
        sentinel: what stands for no pair: ``topk_m`` is K << 24 | tokens, ``m`` is tokens alone.
        unused_expert: what blocks past the last valid one are called.
        out: sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids to fill, as long as they
            are; num_valid_ids may have one entry.

    Raises:
        ValueError: an argument is out of range, an id is no expert or comes twice in a row, or the
            table does not fit; the text says how far.
    """
    options: dict[str, Any] = {
        "expert_mask": expert_mask,
        "num_local_tokens": num_local_tokens,
        "sentinel": sentinel,
        "unused_expert": unused_expert,
    }
    if out is None:
        ids, weights, experts, valid, status = torch.ops.opreplay.moe_sorting(
            topk_ids, topk_weights, num_experts, block_size, length=length, **options
        )
        out = (ids, weights, experts, valid)
    else:
        status = _new_status(topk_ids, _SORT_STATUS)
        torch.ops.opreplay.moe_sorting.out(
            topk_ids,
            topk_weights,
            num_experts,
            block_size,
            **options,
            sorted_ids=out[0],
            sorted_weights=out[1],
            sorted_expert_ids=out[2],
            num_valid_ids=out[3],
            status=status,
        )
    if _must_check(status):
        torch.ops.opreplay.check_moe_status(status)
    known_experts = num_experts if expert_mask is None else expert_mask.numel()
    return MoeSortingTable(*out, status, known_experts, block_size, topk_ids.size(0))


def grouped_gemm(
    topk_ids: Tensor,
    num_experts: int,
    *,
    n: int | None = None,
    k: int | None = None,
    align: int = 1,
    out: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None] | None = None,
) -> GroupedGemm:
    """Lays the pairs out as rows of a grouped GEMM, expert after expert, ascending within each.

    Args:
        topk_ids: [M, K] int32, int64 or uint32.
        num_experts: E, groups.
        n: columns of each problem, for problem_sizes.
        k: depth of each problem, for problem_sizes.
        align: each expert's rows are padded to a multiple of this; scale factors want 128.
        out: the tensors of the result to fill, up to problem_sizes, in the lengths they have;
            offsets_exclusive may have E or E + 1 entries.

    Raises:
        ValueError: an argument is out of range, an id is no expert, or the rows do not fit.
    """
    if out is None:
        *tensors, status = torch.ops.opreplay.grouped_gemm(
            topk_ids, num_experts, n=n, k=k, align=align
        )
        ends, starts, permutation, inverse, counts, problems = tensors
        out = (ends, starts, permutation, inverse, counts, problems)
    else:
        status = _new_status(topk_ids, _SORT_STATUS)
        torch.ops.opreplay.grouped_gemm.out(
            topk_ids,
            num_experts,
            n=n,
            k=k,
            align=align,
            offsets_inclusive=out[0],
            offsets_exclusive=out[1],
            permutation=out[2],
            inverse=out[3],
            tokens_per_expert=out[4],
            problem_sizes=out[5],
            status=status,
        )
    if _must_check(status):
        torch.ops.opreplay.check_moe_status(status)
    return GroupedGemm(*out, status)


_SORT_STATUS = 3
_BATCHED_STATUS = 2


def _new_status(like: Tensor, entries: int) -> Tensor:
    return torch.empty(entries, dtype=torch.int32, device=like.device)


def _must_check(status: Tensor) -> bool:
    """On the CPU the operator itself has raised; in a capture nothing may wait for the device."""
    return status.is_cuda and not torch.cuda.is_current_stream_capturing()


def _loads(histogram: Histogram | str | Path | None) -> Tensor | None:
    if histogram is None:
        return None
    if isinstance(histogram, str | Path):
        return read_histogram(histogram)
    return torch.as_tensor(histogram, dtype=torch.float64, device="cpu")


def _block_stats(
    real: Tensor,
    block_experts: Tensor,
    num_valid: Tensor,
    block_size: int,
    num_experts: int,
    ranks: int,
) -> LoadStats:
    """Counts the real entries of the experts here; blocks called -1 belong to another rank."""
    valid = int(num_valid[0])
    experts = block_experts[: valid // block_size].to(torch.int64)
    rows = real[:valid].view(-1, block_size).sum(1)
    here = experts >= 0
    counts = torch.zeros(num_experts, dtype=torch.int64, device=rows.device)
    counts.index_add_(0, experts[here], rows[here])
    return load_stats(counts, padded_rows=int(here.sum()) * block_size, ranks=ranks)
