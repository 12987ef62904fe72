"""vLLM on the CPU: paged attention, its cache writes and metadata, and oneDNN products."""

from __future__ import annotations

import torch

from opreplay.recipes.attention import choose_paged, read_pool, write_keys, write_queries
from opreplay.recipes.call import RecipeCall, RecipeError, run_operator
from opreplay.recipes.paged_attention import PAGED_SYMBOLS
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import UNBOUNDED_LENGTH, choose_batch
from opreplay.resolve.strings import vllm_cpu_isa
from opreplay.tables import block

__all__: list[str] = []

PRIMITIVES = 32
"""Shapes that a oneDNN handle keeps ready; vLLM's own number for unquantized layers."""


@recipe("_C::onednn_mm", produced={"handler_tensor": "_C::create_onednn_mm_handler"})
def onednn_mm(call: RecipeCall) -> str:
    """The handle belongs to a random weight of the product's sizes, packed by oneDNN."""
    result, left = call.tensor("c"), call.tensor("a")
    columns, inner = result.dims[-1], left.dims[-1]
    # Stored as [N, K] and transposed, as a linear layer keeps it.
    weight = torch.rand(columns, inner, generator=torch.Generator().manual_seed(0))
    weight = weight.sub_(0.5).to(left.dtype).t()
    handle = run_operator("_C::create_onednn_mm_handler", weight, PRIMITIVES)
    call.replace("handler_tensor", handle, release="_C::release_dnnl_matmul_handler")
    call.assume(
        "the packed weight is one for all copies of the inputs: cold times find it in cache, "
        "and bytes do not count it"
    )
    return f"handle of a {inner} x {columns} weight from create_onednn_mm_handler"


@recipe(
    "_C::cpu_attention_with_kv_cache",
    reads_step=True,
    produced={"scheduler_metadata": "_C::get_scheduler_metadata"},
    pools=Pools(("key_cache", "value_cache"), ("block_table",)),
    symbols=PAGED_SYMBOLS,
)
def cpu_attention(call: RecipeCall) -> str:
    """Distinct blocks, lengths within the table, and metadata from the operator that makes it."""
    query, (_, kv_heads, block_size, head_size) = (
        call.tensor("query"),
        call.tensor("key_cache").dims,
    )
    pool = read_pool(call, "key_cache", rank=4, block_dim=2)
    sequences = call.tensor("block_table").dims[0]
    batch = choose_paged(call, pool, sequences, query.dims[0])
    write_queries(call, batch)
    told = write_keys(call, batch, pool)
    call.fill_floats(0.5, 1.5, "alibi_slopes")
    recorded = call.tensor("scheduler_metadata").numel
    metadata = run_operator(
        "_C::get_scheduler_metadata",
        sequences,
        query.dims[1],
        kv_heads,
        head_size,
        batch.seq_lens,
        query.dtype,
        block.query_start_loc(batch.query_lens),
        call.value("causal"),
        call.value("sliding_window_size"),
        vllm_cpu_isa(call.tensor("key_cache").dtype, head_size, block_size),
        True,  # vLLM's default; whether the recording run split keys is not in the trace.
        call.value("dynamic_causal"),
        call.value("kv_cache_dtype"),
    )
    call.replace("scheduler_metadata", metadata)
    if metadata.numel() != recorded:
        call.assume(
            f"get_scheduler_metadata made {metadata.numel()} bytes here, {recorded} were recorded: "
            "threads or lengths differ"
        )
    return (
        f"{batch}; {told}; scheduler_metadata from "
        f"get_scheduler_metadata for {torch.get_num_threads()} threads"
    )


@recipe("_C::get_scheduler_metadata", reads_step=True)
def scheduler_metadata(call: RecipeCall) -> str:
    """Lengths for every sequence; the operator has no argument that bounds them."""
    sequences = call.tensor("seq_lens").numel
    batch = choose_batch(call, sequences, None, longest=UNBOUNDED_LENGTH)
    write_queries(call, batch)
    call.tensor("seq_lens").write(batch.seq_lens)
    return str(batch)


@recipe("_C::compute_slot_mapping_kernel_impl", reads_step=True)
def compute_slot_mapping(call: RecipeCall) -> str:
    """Positions within the blocks of each sequence; the blocks are distinct."""
    table, positions = call.tensor("block_table"), call.tensor("positions")
    # The table has a row for each sequence that the engine could run, not only those that do.
    rows, width = table.dims
    sequences = call.tensor("query_start_loc").numel - 1
    if sequences > rows:
        raise RecipeError(f"{sequences} sequences, but block_table has {rows} rows")
    block_size = call.value("block_size")
    batch = choose_batch(call, sequences, positions.numel, longest=width * block_size)
    call.tensor("query_start_loc").write(block.query_start_loc(batch.query_lens))
    made = block.positions(
        batch.seq_lens, batch.query_lens, total=positions.numel, dtype=positions.dtype
    )
    positions.write(made)
    table.write_distinct(rows * width)
    return f"{batch}; blocks distinct in [0, {rows * width})"
