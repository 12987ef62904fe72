"""Builds MoE routing and the tables that MoE kernels sort it into: sizes in, int32 tensors out.

Every builder runs where its tensors are, gives the same bits on every device, and has an ``out=`` form
that fills recorded buffers in place. On the CPU a table that does not fit, or an id that is no expert,
raises ``ValueError``. On a device that is known only there: the call then reads the table's ``status``,
which synchronises once, unless a graph is being captured.
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
            real, self.expert_ids, self.num_tokens_post_padded, self.block_size, self.num_experts, ranks
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
            real, self.sorted_expert_ids, self.num_valid_ids, self.block_size, self.num_experts, ranks
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
        rows = int(self.offsets_exclusive[self.tokens_per_expert.numel() - 1 :].max())
        rows = max(rows, int(self.offsets_inclusive[-1]))
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

    ``uniform``, ``zipf`` and ``hot`` draw a token's experts one after the other without replacement, in
    proportion to their loads (Plackett-Luce), so that a hot expert gets less than its share. The others
    give every expert an exact number of tokens, spread over the tokens at random.

    Args:
        num_tokens: M, rows of the result.
        num_experts: E, routed experts.
        top_k: K, routed experts of a token.
        distribution: ``uniform``; ``zipf``, load of the r-th hottest expert proportional to ``r ** -s``;
            ``hot``, all tokens on ``hot`` experts; ``balanced``, counts differ by at most one, also
            between the ``ranks``; ``histogram``, counts in proportion to the loads given, at most M for
            an expert; ``power_law``, counts from a density proportional to ``x ** -alpha`` on
            [1, 0.8 M]; ``one_hot``, every token on the same K experts. Hot experts are random ones.
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
        device: where to draw. The few integers per expert that describe the distribution are copied there,
            which synchronises once; under graph capture, make them before and give ``table``.
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
