"""Paged attention of generating sequences: distinct blocks, lengths within table and pool."""

from __future__ import annotations

from collections.abc import Mapping

from opreplay.recipes.attention import (
    BLOCK_TABLES,
    KEY_LENGTHS,
    LONGEST_KEYS,
    LONGEST_QUERY,
    PAGE_STARTS,
    PAGES,
    QUERY_STARTS,
    SCALES,
    Pool,
    choose_paged,
    read_pool,
    require_paged_keys,
    tensor_named,
    write_keys,
    write_queries,
)
from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import Batch
from opreplay.recipes.symbols import Sizes, Symbols
from opreplay.trace.steps import Phase, Step

__all__ = ["PAGED_SYMBOLS"]

QUERIES = ("query", "out", "output", "exp_sums", "max_logits", "tmp_out")
"""[tokens, heads, ...]; of those with partitions of the keys, these are dim 2."""
PARTITIONED = ("exp_sums", "max_logits", "tmp_out")
BLOCK_DIM = {
    "_C::paged_attention_v1": 3,
    "_C::paged_attention_v2": 3,
    "_rocm_C::paged_attention": 3,
    "_C::cpu_attention_with_kv_cache": 2,
}
"""Dim of the key cache that runs over the tokens of a block; dim 1 runs over the key heads."""
PARTITION_SIZE = {"_C::paged_attention_v2": 512, "_rocm_C::paged_attention": 256}
"""Keys of a partition, from vLLM's paged_attn.py and rocm.py."""
PER_HEAD = ("alibi_slopes", "s_aux")
FIXED = ("k_scale", "v_scale", "scheduler_metadata", "fp8_out_scale")
"""What follows no size, or is made anew for the batch."""

CACHES = ("key_cache", "value_cache", "K", "V", "K_QScale", "V_QScale", "k_dequant_scales",
          "v_dequant_scales")  # fmt: skip


def resize_paged(sizes: Sizes, wanted: Mapping[str, int]) -> Step | None:
    """Changes a paged call: tables as wide as the keys need, and a cache that holds all blocks.

    Without a key length, each sequence may have as many blocks as it could when recorded.
    """
    if sizes.op not in BLOCK_DIM:
        raise ValueError(f"no symbols are declared for {sizes.op}: set its dims by argument")
    recorded, width = sizes.dim(BLOCK_TABLES, 0), sizes.dim(BLOCK_TABLES, 1)
    tokens, heads = sizes.dim(QUERIES, 0), sizes.dim(QUERIES, 1)
    blocks, kv_heads = sizes.dim(("key_cache",), 0), sizes.dim(("key_cache",), 1)
    block_size = sizes.dim(("key_cache",), BLOCK_DIM[sizes.op])
    sequences = wanted.get("num_seqs", recorded)
    queries, uneven = divmod(tokens, recorded)
    if "query_len" in wanted:
        queries = wanted["query_len"]
    elif uneven or not queries:
        raise ValueError(f"{tokens} queries of {recorded} sequences were recorded: set query_len")
    heads, kv_heads = wanted.get("num_heads", heads), wanted.get("num_kv_heads", kv_heads)
    if heads % kv_heads:
        raise ValueError(f"{heads} heads are no multiple of {kv_heads} key heads")
    keys, each = wanted.get("kv_len"), min(width, blocks // max(recorded, 1))
    if keys is not None:
        if keys < queries:
            raise ValueError(f"{keys} keys do not hold the {queries} new ones of a sequence")
        width = each = -(-keys // block_size)
        sizes.set_numbers(LONGEST_KEYS, keys)
        if sizes.op in PARTITION_SIZE:
            sizes.resize(PARTITIONED, 2, -(-keys // PARTITION_SIZE[sizes.op]))
    blocks = wanted.get("num_blocks", max(blocks, sequences * each))
    if blocks < sequences * each:
        raise ValueError(f"{blocks} blocks do not hold {each} of each of {sequences} sequences")
    sizes.resize(QUERIES, 0, sequences * queries)
    sizes.resize(QUERIES, 1, heads)
    sizes.resize(("key_cache", "value_cache"), 1, kv_heads)
    sizes.set_numbers(("num_kv_heads",), kv_heads)
    sizes.set_numbers(LONGEST_QUERY, queries)
    sizes.resize(PER_HEAD, 0, heads)
    sizes.resize(("key_cache", "value_cache"), 0, blocks)
    sizes.resize(BLOCK_TABLES, 0, sequences)
    sizes.resize(BLOCK_TABLES, 1, width)
    sizes.resize(KEY_LENGTHS, 0, sequences)
    sizes.resize(QUERY_STARTS, 0, sequences + 1)
    sizes.named(FIXED)
    if keys is None:
        return None
    lengths = (keys,) * sequences
    return Step(Phase(), Phase(sequences, sequences * queries, sum(lengths), lengths=lengths))


PAGED_SYMBOLS = Symbols(
    ("num_seqs", "query_len", "kv_len", "num_heads", "num_kv_heads", "num_blocks"), resize_paged
)


@recipe(
    "_C::paged_attention_v1",
    "_C::paged_attention_v2",
    "aiter::paged_attention_rocm",
    "aiter::pa_fwd_naive",
    "aiter::pa_fwd_asm",
    "aiter::_pa_fwd_asm",
    reads_step=True,
    pools=Pools(CACHES, BLOCK_TABLES),
    symbols=PAGED_SYMBOLS,
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
    symbols=PAGED_SYMBOLS,
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
    require_paged_keys(call)
    name = call.require("key_cache", "K")
    if "kv_cache_layout" in call.names:
        hnd = call.value("kv_cache_layout") == "HND"
        return read_pool(call, name, rank=4, block_dim=2 if hnd else 1)
    return read_pool(call, name, rank=5, block_dim=3)


def _sequences(call: RecipeCall) -> int:
    return call.tensor(call.require(*BLOCK_TABLES)).dims[0]


def _queries(call: RecipeCall) -> int:
    return call.tensor(call.require("query", "Q")).dims[0]


def _write(call: RecipeCall, batch: Batch, pool: Pool) -> str:
    write_queries(call, batch)
    call.fill_floats(0.5, 1.5, *SCALES)
    return write_keys(call, batch, pool)
