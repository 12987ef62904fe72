"""Builds integer inputs of attention and MoE operators: lengths, block tables, routing tables."""

from __future__ import annotations

from opreplay.tables.load import LoadStats, load_stats, read_histogram
from opreplay.tables.moe import (
    GroupedGemm,
    MoeAlignTable,
    MoeSortingTable,
    Routing,
    batched_moe_align_block_size,
    grouped_gemm,
    moe_align_block_size,
    moe_sorting,
    routing_table,
    topk_routing,
)

__all__ = [
    "GroupedGemm",
    "LoadStats",
    "MoeAlignTable",
    "MoeSortingTable",
    "Routing",
    "batched_moe_align_block_size",
    "grouped_gemm",
    "load_stats",
    "moe_align_block_size",
    "moe_sorting",
    "read_histogram",
    "routing_table",
    "topk_routing",
]
