"""Latent attention (MLA): one cache for keys and values, and plans from the operators that plan."""

from __future__ import annotations

from typing import Any

import torch

from opreplay.recipes.attention import (
    BLOCK_TABLES,
    KEY_LENGTHS,
    LAST_PAGES,
    LONGEST_QUERY,
    PAGE_STARTS,
    PAGES,
    QUERY_STARTS,
    SCALES,
    Pool,
    choose_paged,
    number_named,
    read_pool,
    require_paged_keys,
    tensor_named,
    write_keys,
    write_queries,
)
from opreplay.recipes.call import RecipeCall, RecipeError, run_operator
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import Batch
from opreplay.tables import block

__all__: list[str] = []


@recipe(
    "_C::sm100_cutlass_mla_decode",
    "sgl_kernel::cutlass_mla_decode",
    reads_step=True,
    pools=Pools(("kv_c_and_k_pe_cache",), BLOCK_TABLES),
)
def cutlass_mla(call: RecipeCall) -> str:
    """One query for each sequence; the cache is [blocks, block, D]."""
    pool = read_pool(call, "kv_c_and_k_pe_cache", rank=3, block_dim=1)
    call.require(*KEY_LENGTHS)
    call.require(*BLOCK_TABLES)
    query = call.tensor("q_nope").dims
    batch = choose_paged(call, pool, query[0], query[0], decode=True)
    return f"{batch}; {write_keys(call, batch, pool)}"


@recipe(
    "sgl_kernel::fwd_kvcache_mla",
    reads_step=True,
    produced=dict.fromkeys(
        ("tile_scheduler_metadata", "num_splits"), "sgl_kernel::get_mla_decoding_metadata"
    ),
    pools=Pools(("kv_cache",), BLOCK_TABLES),
)
def flash_mla(call: RecipeCall) -> str:
    """As many queries for each sequence; the cache is [blocks, block, heads, D]."""
    pool = read_pool(call, "kv_cache", rank=4, block_dim=1)
    call.require(*KEY_LENGTHS)
    call.require(*BLOCK_TABLES)
    query = call.tensor("q").dims
    batch = choose_paged(call, pool, query[0], query[0] * query[1], decode=True)
    told = write_keys(call, batch, pool)
    plan = _flash_mla_plan(
        call, batch, query, call.tensor("kv_cache").dims[2], fp8=call.value("is_fp8")
    )
    call.replace("tile_scheduler_metadata", plan[0])
    call.replace("num_splits", plan[1])
    return f"{batch}; {told}; tile_scheduler_metadata from get_mla_decoding_metadata"


@recipe(
    "_flashmla_C::fwd_kvcache_mla",
    reads_step=True,
    produced=dict.fromkeys(("_7", "_8"), "_flashmla_C::get_mla_decoding_metadata"),
    pools=Pools(("_1",), ("_4",)),
)
def vllm_flash_mla(call: RecipeCall) -> str:
    """The same call; its schema is made from C++, where arguments have no name but their number.

    0 query, 1 cache, 2 head size of the values, 3 lengths, 4 table, 5 scale, 6 causal, 7 plan, 8
    splits, 9 fp8: the order of csrc/flash_api.cpp of FlashMLA.
    """
    query = call.tensor("_0").dims
    pool = read_pool(call, "_1", rank=4, block_dim=1)
    lengths, table = call.tensor("_3"), call.tensor("_4")
    bounded = Pool(min(pool.blocks, query[0] * table.dims[1]), pool.block_size)
    batch = choose_paged(call, bounded, query[0], query[0] * query[1], decode=True)
    lengths.write(batch.seq_lens.to(lengths.dtype))
    made = block.block_table(batch.seq_lens, pool.block_size, pool.blocks, width=table.dims[1])
    table.write(made.table.to(table.dtype))
    fp8 = "_9" in call.names and bool(call.value("_9"))
    plan = _flash_mla_plan(call, batch, query, call.tensor("_1").dims[2], fp8=fp8)
    call.replace("_7", plan[0])
    call.replace("_8", plan[1])
    return f"{batch}; blocks distinct in [0, {pool.blocks}); plan from get_mla_decoding_metadata"


def _flash_mla_plan(
    call: RecipeCall, batch: Batch, query: tuple[int, ...], kv_heads: int, *, fp8: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    _, each, heads, _ = query
    plan, splits = run_operator(
        f"{call.op.partition('::')[0]}::get_mla_decoding_metadata",
        batch.seq_lens.to(call.tensor(call.names[0]).device),
        each * heads // kv_heads,
        kv_heads,
        heads,
        fp8,
        None,
    )
    return plan, splits


@recipe(
    "aiter::mla_decode_stage1_asm_fwd",
    "aiter::mla_prefill_asm_fwd",
    "aiter::mla_decode_v4_asm",
    "vllm::rocm_aiter_mla_decode_fwd",
    reads_step=True,
    produced=dict.fromkeys(
        ("work_meta_data", "work_indptr", "work_info_set"), "aiter::_get_mla_metadata_v1_impl"
    ),
    pools=Pools(("KV", "kvrope", "kv_buffer"), PAGES),
)
def aiter_mla(call: RecipeCall) -> str:
    """Pages in a list, [pages, page, heads, D]; the work is split evenly or by a planner."""
    name = "kv_buffer" if call.has_tensor("kv_buffer") else "KV"
    pool = read_pool(call, name, rank=4, block_dim=1)
    batch, told = _paged(call, pool, decode="prefill" not in call.op)
    if call.has_tensor("work_meta_data"):
        pointers = call.tensor("work_meta_data")
        told += _plan(
            call,
            "aiter::_get_mla_metadata_v1_impl",
            kv_heads=call.tensor(name).dims[2],
            group="num_heads_per_head_k",
            seqlens_qo_indptr=_value(call, QUERY_STARTS),
            seqlens_kv_indptr=_value(call, PAGE_STARTS),
            kv_last_page_lens=_value(call, LAST_PAGES),
            work_metadata_ptrs=pointers.unfilled,
            work_info_set=call.tensor("work_info_set").value,
            page_size=pool.block_size,
            max_seqlen_qo=number_named(call, LONGEST_QUERY),
        )
        pointers.leave_unfilled()
        return f"{batch}; {told}"
    splits = call.tensor("splitData").dims[1] if call.has_tensor("splitData") else 1
    for starts in call.present("num_kv_splits_indptr", "split_indptr"):
        starts.write_list([splits * sequence for sequence in range(starts.numel)])
        told += f"; {splits} splits of each sequence"
    return f"{batch}; {told}"


@recipe(
    "aiter::_pa_ps_fwd_asm",
    "aiter::pa_ps_fwd_asm",
    reads_step=True,
    produced=dict.fromkeys(("work_indptr", "work_info"), "aiter::get_pa_metadata_v1"),
    pools=Pools(("K", "V", "K_QScale", "V_QScale"), PAGES),
)
def persistent_attention(call: RecipeCall) -> str:
    """The kernel stays on the device and takes work from a plan; K is as for `pa_fwd_asm`."""
    pool = read_pool(call, "K", rank=5, block_dim=3)
    batch, told = _paged(call, pool, decode=True)
    if call.has_tensor("work_indptr"):
        told += _plan(
            call,
            "aiter::get_pa_metadata_v1",
            kv_heads=call.tensor("K").dims[1],
            group="num_heads_per_head_k",
            seqlens_qo_indptr=_value(call, QUERY_STARTS),
            pages_kv_indptr=_value(call, PAGE_STARTS),
            context_lens=_value(call, KEY_LENGTHS),
            work_metadata_ptrs=torch.zeros(2, dtype=torch.uint64, device=call.tensor("K").device),
            work_info=call.tensor("work_info").value,
            block_size=pool.block_size,
            max_seqlen_qo=number_named(call, LONGEST_QUERY),
        )
    return f"{batch}; {told}"


@recipe(
    "aiter::mla_prefill_ps_asm_fwd",
    reads_step=True,
    produced=dict.fromkeys(("work_indptr", "work_info_set"), "aiter::get_ps_metadata_v1"),
    pools=Pools(("K", "V"), PAGES),
)
def persistent_mla(call: RecipeCall) -> str:
    """Prompts of latent attention with keys and values spelt out, a page for each token."""
    pool = read_pool(call, "K", rank=3, block_dim=1)
    heads = call.tensor("K").dims[1]
    pool = Pool(pool.blocks, 1)
    batch, told = _paged(call, pool, decode=False)
    if call.has_tensor("work_indptr"):
        told += _plan(
            call,
            "aiter::get_ps_metadata_v1",
            kv_heads=heads,
            group="gqa_ratio",
            # This planner reads its lengths on the CPU.
            seqlens_qo_indptr=block.query_start_loc(batch.query_lens),
            pages_kv_indptr=block.query_start_loc(batch.seq_lens),
            context_lens=batch.seq_lens,
            work_metadata_ptrs=torch.zeros(2, dtype=torch.uint64, device=call.tensor("K").device),
            work_info=call.tensor("work_info_set").value,
            block_size=1,
        )
    return f"{batch}; {told}"


@recipe("aiter::mla_reduce_v1")
def mla_reduce(call: RecipeCall) -> str:
    """Refuses: what is reduced is what a first stage split, and no lengths are among the inputs."""
    raise RecipeError(
        f"{call.op} adds up what the plan of its first stage split, which "
        "aiter::_get_mla_metadata_v1_impl makes from lengths that this call lacks"
    )


def _paged(call: RecipeCall, pool: Pool, *, decode: bool) -> tuple[Batch, str]:
    require_paged_keys(call)
    sequences = _value(call, QUERY_STARTS).numel() - 1
    query = call.tensor("q" if call.has_tensor("q") else "Q")
    batch = choose_paged(call, pool, sequences, query.dims[0], decode=decode)
    write_queries(call, batch)
    call.fill_floats(0.5, 1.5, *SCALES)
    return batch, write_keys(call, batch, pool)


def _value(call: RecipeCall, names: tuple[str, ...]) -> torch.Tensor:
    found = tensor_named(call, names)
    if found is None:
        raise RecipeError(f"{call.op} has no {names[0]}; it has {', '.join(call.names)}")
    return found.unfilled


def _plan(call: RecipeCall, producer: str, *, kv_heads: int, group: str, **given: Any) -> str:
    """Has the work of a persistent kernel planned, into the tensors of the call.

    A plan may hold the addresses of its own tensors, so it is made for these and no others. What
    the reduction afterwards would read goes into tensors that are dropped, large enough for a tile
    for each row of queries and each head.

    Args:
        call: Has the tensors.
        producer: The operator that plans.
        kv_heads: Heads of the cache.
        group: What the planner calls the number of query heads that share one of these.
        given: Its other arguments.
    """
    rows, heads = call.tensor("Q").dims[:2]
    indptr = call.tensor("work_indptr")
    tiles = max(1, rows * heads)

    def scratch(*dims: int) -> torch.Tensor:
        return torch.zeros(dims, dtype=torch.int32, device=indptr.device)

    causal = next((call.value(n) for n in ("is_causal", "causal") if n in call.names), True)
    run_operator(
        producer,
        **given,
        **{group: heads // kv_heads},
        num_heads_k=kv_heads,
        is_causal=causal,
        work_indptr=indptr.value,
        reduce_indptr=scratch(tiles + 1),
        reduce_final_map=scratch(tiles, 2),
        reduce_partial_map=scratch(tiles),
    )
    return f"; work planned by {producer}"
