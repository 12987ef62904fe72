"""FlashAttention: where each sequence begins and ends; keys in blocks or one after the other."""

from __future__ import annotations

import torch

from opreplay.recipes.attention import (
    BLOCK_TABLES,
    KEY_STARTS,
    LONGEST_KEYS,
    LONGEST_QUERY,
    PAGE_STARTS,
    PAGES,
    QUERY_STARTS,
    SCALES,
    Pool,
    choose_paged,
    number_named,
    padded,
    read_pool,
    tensor_named,
    write_keys,
    write_queries,
)
from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError, run_operator
from opreplay.recipes.registry import Pools, recipe
from opreplay.recipes.sequences import Batch, choose_rows

__all__: list[str] = []

KEYS = ("kcache", "k", "key")
POOLS = Pools((*KEYS, "vcache", "v", "value", "kv_block_descale"), (*BLOCK_TABLES, *PAGES))


@recipe(
    "_vllm_fa2_C::varlen_fwd",
    "_vllm_fa2_C::fwd_kvcache",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn::_flash_attn_varlen_backward",
    "xformers_flash::flash_fwd",
    "aiter::mha_varlen_fwd",
    "aiter::mha_varlen_bwd",
    "aiter::fmha_v3_varlen_fwd",
    "aiter::fmha_v3_varlen_bwd",
    "aiter::mha_batch_prefill",
    reads_step=True,
    pools=POOLS,
)
@recipe(
    "_vllm_fa3_C::fwd",
    reads_step=True,
    produced={"scheduler_metadata": "_vllm_fa3_C::get_scheduler_metadata"},
    pools=POOLS,
)
@recipe(
    "flash_attn_3::fwd",
    reads_step=True,
    produced={"scheduler_metadata": "flash_attn_3::get_scheduler_metadata"},
    pools=POOLS,
)
@recipe(
    "sgl_kernel::fwd",
    reads_step=True,
    produced={"scheduler_metadata": "sgl_kernel::get_scheduler_metadata"},
    pools=POOLS,
)
def flash_attention(call: RecipeCall) -> str:
    """Sequences fill the rows of queries; keys are in the blocks of a cache, or rows as well.

    Queries without bounds are [sequences, queries of each, heads, D], and keys without a table
    likewise, each sequence's own or chosen by an index.
    """
    query, key = call.tensor(_one_of(call, ("q", "query"))), call.tensor(_one_of(call, KEYS))
    if len(query.dims) == 3:
        _one_of(call, QUERY_STARTS)
    if tensor_named(call, PAGES) is not None or tensor_named(call, PAGE_STARTS) is not None:
        _one_of(call, PAGES)
        _one_of(call, PAGE_STARTS)
    starts = tensor_named(call, QUERY_STARTS)
    sequences = query.dims[0] if starts is None else starts.numel - 1
    queries = query.numel // max(query.dims[-1] * query.dims[-2], 1)
    call.fill_floats(0.5, 1.5, *SCALES)
    pool = _pool(call)
    if pool is None and tensor_named(call, KEY_STARTS) is not None:
        batch = choose_rows(
            call,
            sequences,
            queries,
            key.dims[0],
            longest_query=number_named(call, LONGEST_QUERY),
            longest_keys=number_named(call, LONGEST_KEYS),
        )
        told = write_keys(call, batch, None)
    elif pool is None:
        rows = read_pool(call, _one_of(call, KEYS), rank=4, block_dim=1)
        own = Pool(min(rows.blocks, sequences), rows.block_size)
        batch = choose_paged(call, own, sequences, queries, decode=starts is None)
        write_keys(call, batch, own, appended=_appended(call))
        for chosen in call.present("cache_batch_idx", "kv_batch_idx"):
            chosen.write_distinct(rows.blocks)
        told = f"rows distinct in [0, {rows.blocks})"
    else:
        batch = choose_paged(call, pool, sequences, queries, decode=starts is None)
        told = write_keys(call, batch, pool, appended=_appended(call))
    write_queries(call, batch)
    _write_new_keys(call, batch)
    return f"{batch}; {told}{_write_schedule(call, batch, query, key, pool)}"


def _one_of(call: RecipeCall, names: tuple[str, ...]) -> str:
    for name in names:
        if call.has_tensor(name):
            return name
    raise RecipeError(f"{call.op} has no tensor {names[0]!r}; it has {', '.join(call.names)}")


def _pool(call: RecipeCall) -> Pool | None:
    """Reads the cache, of one of three layouts; None if no table says that there is one.

    [blocks, block, heads, D]; [blocks, heads, D / x, block, x]; [tokens, heads, D], a page each.
    """
    in_pages = tensor_named(call, PAGE_STARTS) is not None
    if tensor_named(call, BLOCK_TABLES) is None and not in_pages:
        return None
    name = _one_of(call, KEYS)
    rank = len(call.tensor(name).dims)
    if rank == 3 and in_pages:
        return Pool(call.tensor(name).dims[0], 1)
    return read_pool(call, name, rank=5 if rank == 5 else 4, block_dim=3 if rank == 5 else 1)


def _appended(call: RecipeCall) -> int:
    """Returns the new keys of each sequence in a call whose lengths count those before them."""
    new = call.present("k")
    return new[0].dims[1] if new and call.has_tensor("kcache") else 0


def _write_new_keys(call: RecipeCall, batch: Batch) -> None:
    """New keys are those of the queries."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), batch.query_lens.cumsum(0)])
    for name, values in {
        "cu_seqlens_k_new": starts,
        "seqused_q": batch.query_lens,
        "seqlens_rotary": batch.seq_lens - batch.query_lens,
    }.items():
        for tensor in call.present(name):
            tensor.write(padded(values, tensor, fill=int(values[-1]) if "cu_" in name else 0))


def _write_schedule(
    call: RecipeCall, batch: Batch, query: InputTensor, key: InputTensor, pool: Pool | None
) -> str:
    """Has the schedule of FlashAttention 3 made by the operator that makes it."""
    if not call.has_tensor("scheduler_metadata"):
        return ""
    producer = f"{call.op.partition('::')[0]}::get_scheduler_metadata"
    recorded = call.tensor("scheduler_metadata").numel
    given = {
        name: call.tensor(name).value if call.has_tensor(name) else None
        for name in ("cu_seqlens_q", "cu_seqlens_k_new", "seqused_q", "leftpad_k")
    }
    if "attention_chunk" in call.names:
        given["attention_chunk"] = call.value("attention_chunk")
    used = call.present("seqused_k")
    metadata = run_operator(
        producer,
        batch_size=batch.query_lens.numel(),
        max_seqlen_q=number_named(call, LONGEST_QUERY) or int(batch.query_lens.max()),
        max_seqlen_k=number_named(call, LONGEST_KEYS) or int(batch.seq_lens.max()),
        num_heads=query.dims[-2],
        num_heads_k=key.dims[-2],
        headdim=query.dims[-1],
        headdim_v=call.tensor("v").dims[-1],
        qkv_dtype=query.dtype,
        seqused_k=used[0].value if used else batch.seq_lens.to(query.device),
        cu_seqlens_k=None if used else call.tensor("cu_seqlens_k").value,
        page_size=None if pool is None else pool.block_size,
        max_seqlen_k_new=0,
        is_causal=call.value("is_causal"),
        window_size_left=call.value("window_size_left"),
        window_size_right=call.value("window_size_right"),
        has_softcap=call.value("softcap") > 0,
        num_splits=call.value("num_splits"),
        pack_gqa=call.value("pack_gqa"),
        sm_margin=call.value("sm_margin"),
        **given,
    )
    call.replace("scheduler_metadata", metadata)
    if metadata.numel() != recorded:
        call.assume(f"{producer} made {metadata.numel()} entries here, {recorded} were recorded")
    return f"; scheduler_metadata from {producer}"
