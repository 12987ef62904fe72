"""Paged attention of generating sequences: distinct blocks, lengths within table and pool."""

from __future__ import annotations

from opreplay.recipes.attention import (
    BLOCK_TABLES,
    PAGE_STARTS,
    PAGES,
    QUERY_STARTS,
    SCALES,
    Pool,
    choose_paged,
    read_pool,
    tensor_named,
    write_keys,
    write_queries,
)
from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import Batch

__all__: list[str] = []

CACHES = ("key_cache", "value_cache", "K", "V", "K_QScale", "V_QScale", "k_dequant_scales",
          "v_dequant_scales")  # fmt: skip


@recipe(
    "_C::paged_attention_v1",
    "_C::paged_attention_v2",
    "aiter::paged_attention_rocm",
    "aiter::pa_fwd_naive",
    "aiter::pa_fwd_asm",
    "aiter::_pa_fwd_asm",
    reads_step=True,
    pools=Pools(CACHES, BLOCK_TABLES),
)
def paged_attention(call: RecipeCall) -> str:
    """As many queries for each sequence: one, or those that are verified together."""
    pool, sequences = _pool(call), _sequences(call)
    batch = choose_paged(call, pool, sequences, _queries(call), decode=True)
    return f"{batch}; {_write(call, batch, pool)}"


@recipe(
    "_rocm_C::paged_attention",
    "aiter::paged_attention_v1",
    reads_step=True,
    pools=Pools(CACHES, BLOCK_TABLES),
)
def decode_attention(call: RecipeCall) -> str:
    """Sequences with one query do the work; the kernel returns at once for every other one."""
    pool, sequences = _pool(call), _sequences(call)
    if tensor_named(call, QUERY_STARTS) is None:
        batch = choose_paged(call, pool, sequences, _queries(call), decode=True)
        return f"{batch}; {_write(call, batch, pool)}"
    batch = choose_paged(call, pool, sequences, _queries(call))
    working = int((batch.query_lens == 1).sum())
    if working == 0:
        raise RecipeError(
            f"{call.op} does no work for a sequence whose query length is not 1, "
            "and the step has none of query length 1"
        )
    idle = sequences - working
    told = f"; {idle} of {sequences} sequences idle" if idle else ""
    return f"{batch}{told}; {_write(call, batch, pool)}"


@recipe("aiter::paged_attention_ragged", reads_step=True, pools=Pools(CACHES, PAGES))
def ragged_attention(call: RecipeCall) -> str:
    """The pages of each sequence lie one after the other in a list that is longer than they are."""
    starts = tensor_named(call, PAGE_STARTS)
    if starts is None:
        raise RecipeError(f"{call.op} has no kv_indptr; it has {', '.join(call.names)}")
    pool = _pool(call)
    if (recorded := call.value("block_size")) != pool.block_size:
        raise RecipeError(f"block_size is {recorded}, the cache has blocks of {pool.block_size}")
    room = call.value("max_num_partitions") * call.value("partition_size")
    batch = choose_paged(call, pool, starts.numel - 1, _queries(call), decode=True, limit=room)
    return f"{batch}; {_write(call, batch, pool)}"


def _pool(call: RecipeCall) -> Pool:
    """Reads the cache, of one of three layouts.

    [blocks, heads, D / x, block, x] has five dimensions; of those with four, [blocks, block, heads,
    D] is called NHD and [blocks, heads, block, D] HND.
    """
    name = "key_cache" if call.has_tensor("key_cache") else "K"
    if "kv_cache_layout" in call.names:
        hnd = call.value("kv_cache_layout") == "HND"
        return read_pool(call, name, rank=4, block_dim=2 if hnd else 1)
    return read_pool(call, name, rank=5, block_dim=3)


def _sequences(call: RecipeCall) -> int:
    table = tensor_named(call, BLOCK_TABLES)
    if table is None:
        raise RecipeError(f"{call.op} has no block table; it has {', '.join(call.names)}")
    return table.dims[0]


def _queries(call: RecipeCall) -> int:
    return call.tensor("query" if call.has_tensor("query") else "Q").dims[0]


def _write(call: RecipeCall, batch: Batch, pool: Pool) -> str:
    write_queries(call, batch)
    call.fill_floats(0.5, 1.5, *SCALES)
    return write_keys(call, batch, pool)
