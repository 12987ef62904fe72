"""Paged attention of vLLM's GPU operators: distinct blocks, lengths within table and pool."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.registry import recipe
from opreplay.recipes.sequences import Batch, choose_batch
from opreplay.tables import block

__all__: list[str] = []


@recipe("_C::paged_attention_v1", "_C::paged_attention_v2", reads_step=True)
def paged_attention(call: RecipeCall) -> str:
    """One query for each sequence."""
    batch = _batch(call, call.tensor("block_tables").dims[0])
    return f"{batch}; {_write(call, batch)}"


@recipe("_rocm_C::paged_attention", reads_step=True)
def decode_attention(call: RecipeCall) -> str:
    """Sequences with one query do the work; the kernel returns at once for every other one."""
    sequences = call.tensor("block_tables").dims[0]
    if not call.has_tensor("query_start_loc"):
        batch = _batch(call, sequences)
        return f"{batch}; {_write(call, batch)}"
    batch = _batch(call, call.tensor("query").dims[0])
    working = int((batch.query_lens == 1).sum())
    if working == 0:
        raise RecipeError(
            "_rocm_C::paged_attention does no work for a sequence whose query length is not 1, "
            "and the step has none of query length 1"
        )
    starts = call.tensor("query_start_loc")
    starts.write(block.query_start_loc(batch.query_lens).to(starts.dtype))
    idle = sequences - working
    told = f"; {idle} of {sequences} sequences idle" if idle else ""
    return f"{batch}{told}; {_write(call, batch)}"


def _batch(call: RecipeCall, queries: int) -> Batch:
    cache = call.tensor("key_cache").dims
    if len(cache) != 5:
        raise RecipeError(f"key_cache is [blocks, heads, D / x, block, x], recorded is {cache}")
    sequences, width = call.tensor("block_tables").dims
    block_size = cache[3]
    longest = min(width, cache[0] // max(sequences, 1)) * block_size
    return choose_batch(
        call, sequences, queries, longest=min(longest, int(call.value("max_seq_len")))
    )


def _write(call: RecipeCall, batch: Batch) -> str:
    blocks, _, _, block_size, _ = call.tensor("key_cache").dims
    table, lengths = call.tensor("block_tables"), call.tensor("seq_lens")
    made = block.block_table(batch.seq_lens, block_size, blocks, width=table.dims[1])
    table.write(made.table)
    lengths.write(batch.seq_lens.to(lengths.dtype))
    call.fill_floats(0.5, 1.5, "alibi_slopes", "k_scale", "v_scale", "fp8_out_scale")
    return f"blocks distinct in [0, {blocks})"
