"""Builds integer inputs of attention and MoE operators: lengths, block tables, routing tables."""

from __future__ import annotations

from opreplay.tables.block import (
    BlockCsr,
    BlockStats,
    BlockTable,
    block_csr,
    block_table,
    positions,
    query_start_loc,
    req_to_token,
    seq_lens,
    slot_mapping,
)
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
    "BlockCsr",
    "BlockStats",
    "BlockTable",
    "GroupedGemm",
    "LoadStats",
    "MoeAlignTable",
    "MoeSortingTable",
    "Routing",
    "batched_moe_align_block_size",
    "block_csr",
    "block_table",
    "grouped_gemm",
    "load_stats",
    "moe_align_block_size",
    "moe_sorting",
    "positions",
    "query_start_loc",
    "read_histogram",
    "req_to_token",
    "routing_table",
    "seq_lens",
    "slot_mapping",
    "topk_routing",
]
