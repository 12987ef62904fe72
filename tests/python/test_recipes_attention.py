"""Recipes of attention, caches and states, from the recorded form of each operator to its rules."""

from __future__ import annotations

import dataclasses

import engine_schemas
import pytest
import rules
import torch
from kineto_events import calls_of, op, trace_of

from opreplay.inputs import Inputs, make_inputs
from opreplay.plan import planned
from opreplay.recipes import find_recipe, list_recipes
from opreplay.resolve.call import TensorSpec
from opreplay.resolve.resolver import Resolver
from opreplay.trace.call import Skipped
from opreplay.trace.steps import parse_step

BLOCKS, BLOCK, HEADS, KV_HEADS, SIZE, WIDTH, LONGEST = 200, 16, 8, 2, 16, 20, 300
ROWS = 512
BF16 = "c10::BFloat16"


@dataclasses.dataclass(frozen=True)
class Batch:
    """The sizes that a call shows, and the totals that the engine wrote."""

    sequences: int
    queries: int
    longest_query: int
    step: str | None = None
    generating: int | None = None
    prompt_queries: int = 0
    keys: tuple[int, int] | None = None


DECODES = "execute_context_0(0)_generation_8(8)"
MIXED = "execute_63_context_2(sq60sk90sqsq2000sqsk3000)_generation_3(sq3sk300sqsq3sqsk300)"
UNTOLD = Batch(8, 8, 1)
DECODE = Batch(8, 8, 1, DECODES, 8)
WHOLE = Batch(5, 63, 40, MIXED, 3, 60, (300, 90))
GENERATING = Batch(3, 3, 1, MIXED, 3, 0, (300, 0))
PROMPTS = Batch(2, 60, 40, MIXED, 0, 60, (0, 90))


def t(kind, *dims):
    return kind, list(dims), ""


def half(*dims):
    return t(BF16, *dims)


def i32(*dims):
    return t("int", *dims)


def i64(*dims):
    return t("long int", *dims)


def number(value):
    return "Scalar", [], str(value)


NOTHING = ("", [], "")


def event_of(name, recorded):
    """The event of a call: what `recorded` does not name is None, or the plainest value."""
    rows = []
    for argument in engine_schemas.schema_of(name).arguments:
        kind = str(argument.type)
        if argument.name in recorded:
            rows.append(recorded[argument.name])
        elif kind in ("int", "float", "bool"):
            default = argument.default_value
            plainest = {"int": "1", "float": "1.", "bool": "False"}[kind]
            rows.append(number(plainest if default is None else default))
        else:
            assert kind.startswith("Optional") or kind == "str", f"{name} needs {argument.name}"
            rows.append(NOTHING)
    unknown = set(recorded) - {a.name for a in engine_schemas.schema_of(name).arguments}
    assert not unknown
    types, dims, values = zip(*rows, strict=True)
    strides = [[] if not d else torch.empty(d, device="meta").stride() for d in dims]
    return op(name, types=types, dims=dims, strides=strides, values=values)


@pytest.fixture(scope="module")
def resolver():
    with engine_schemas.registered():
        yield Resolver(device="cpu")


def inputs_of(resolver, tmp_path, name, recorded, **options):
    """Writes an event, reads it, resolves it and makes its inputs."""
    (call,) = calls_of(tmp_path, event_of(name, recorded)).values()
    return inputs_of_call(resolver, call, **options)


def inputs_of_call(resolver, call, *, step=None, budget=1 << 30):
    resolved = resolver.resolve(call)
    assert not isinstance(resolved, Skipped), resolved
    resolved = dataclasses.replace(resolved, batch=parse_step(step or ""))
    made = make_inputs(resolved, device="cpu", seed=0, memory_budget=budget)
    if isinstance(made, Skipped):
        return made
    assert isinstance(made, Inputs)
    names = [argument.name for argument in resolved.arguments]
    return dict(zip(names, made.arguments, strict=True)) | {"row": made}


# The recorded form of each operator.


def paged(b, **more):
    return {
        "query": half(b.queries, HEADS, SIZE),
        "out": half(b.queries, HEADS, SIZE),
        "key_cache": half(BLOCKS, KV_HEADS, SIZE // 8, BLOCK, 8),
        "value_cache": half(BLOCKS, KV_HEADS, SIZE, BLOCK),
        "block_tables": i32(b.sequences, WIDTH),
        "k_scale": t("float"),
        "v_scale": t("float"),
        **more,
    }


def partitions(b):
    parts = {name: t("float", b.queries, HEADS, 2) for name in ("exp_sums", "max_logits")}
    return parts | {"tmp_out": half(b.queries, HEADS, 2, SIZE)}


def v1(b):
    return paged(
        b, num_kv_heads=number(KV_HEADS), seq_lens=i32(b.sequences), block_size=number(BLOCK),
        max_seq_len=number(LONGEST),
    )  # fmt: skip


def v2(b):
    return v1(b) | partitions(b)


def rocm(b):
    return v2(b) | {"query_start_loc": i32(b.sequences + 1)}


def aiter_rocm(b):
    return paged(
        b, **partitions(b), context_lens=i32(b.sequences), block_size=number(BLOCK),
        max_context_len=number(LONGEST),
    )  # fmt: skip


def aiter_v1(b):
    cache = half(BLOCKS, BLOCK, KV_HEADS, SIZE)
    return paged(
        b, key_cache=cache, value_cache=cache, workspace_buffer=t("unsigned char", 4096),
        cu_query_lens=i32(b.sequences + 1), context_lens=i32(b.sequences),
        max_context_len=number(LONGEST),
    )  # fmt: skip


def ragged(b):
    cache = half(BLOCKS * BLOCK, 1, KV_HEADS, SIZE)
    made = paged(
        b, key_cache=cache, value_cache=cache, workspace_buffer=t("unsigned char", 4096),
        kv_indptr=i32(b.sequences + 1), kv_page_indices=i32(4000), kv_last_page_lens=i32(64),
        block_size=number(1), max_num_partitions=number(2),
    )  # fmt: skip
    del made["block_tables"]
    return made


def asm(b):
    return {
        "Q": half(b.queries, HEADS, SIZE),
        "K": half(BLOCKS, KV_HEADS, SIZE // 8, BLOCK, 8),
        "V": half(BLOCKS, KV_HEADS, BLOCK // 8, SIZE, 8),
        "block_tables": i32(b.sequences, WIDTH),
        "context_lens": i32(b.sequences),
        "block_tables_stride0": number(WIDTH),
        "max_qlen": number(b.longest_query),
        "qo_indptr": i32(b.sequences + 1),
    }


def naive(b):
    made = paged(
        b, context_lens=i32(b.sequences), max_seq_len=number(LONGEST), block_size=number(BLOCK),
        k_dequant_scales=t("float", KV_HEADS, BLOCKS * BLOCK),
        v_dequant_scales=t("float", KV_HEADS, BLOCKS * BLOCK),
    )  # fmt: skip
    del made["k_scale"], made["v_scale"]
    return made


def persistent(b):
    made = asm(b) | {
        "kv_indptr": i32(b.sequences + 1), "kv_page_indices": i32(190), "work_indptr": i32(9),
        "work_info": i32(16, 8),
    }  # fmt: skip
    del made["block_tables"], made["block_tables_stride0"]
    return made


def flash(b, **more):
    cache = half(BLOCKS, BLOCK, KV_HEADS, SIZE)
    made = {
        "q": half(b.queries, HEADS, SIZE), "k": cache, "v": cache,
        "cu_seqlens_q": i32(b.sequences + 1), "cu_seqlens_k": i32(b.sequences + 1),
        "max_seqlen_q": number(b.longest_query), "max_seqlen_k": number(LONGEST),
    }  # fmt: skip
    return made | more


def fa2(b):
    return flash(b, block_table=i32(b.sequences, WIDTH), seqused_k=i32(b.sequences))


def mha_paged(b):
    return flash(b, block_table=i32(b.sequences, WIDTH))


def fa3(b):
    made = fa2(b) | {
        "page_table": i32(b.sequences, WIDTH), "scheduler_metadata": i32(9),
        "num_splits": number(0),
    }  # fmt: skip
    del made["cu_seqlens_k"], made["block_table"]
    return made


def rows(b):
    keys = sum(b.keys) if b.keys else b.queries
    new = half(keys, KV_HEADS, SIZE)
    longest = {PROMPTS: 45, WHOLE: 100}.get(b, 1)
    return flash(b, k=new, v=new, max_seqlen_k=number(longest))


def rows_backward(b):
    like = half(b.queries, HEADS, SIZE)
    return rows(b) | {"dout": like, "out": like, "softmax_lse": t("float", HEADS, b.queries)}


def xformers(b):
    made = fa2(b)
    for old, new in {"q": "query", "k": "key", "v": "value", "block_table": "block_tables"}.items():
        made[new] = made.pop(old)
    return made


def kvcache(b, *, table=True):
    cache = half(BLOCKS, BLOCK, KV_HEADS, SIZE) if table else half(32, LONGEST, KV_HEADS, SIZE)
    return {
        "q": half(b.sequences, 1, HEADS, SIZE),
        "kcache": cache,
        "vcache": cache,
        "k": half(b.sequences, 1, KV_HEADS, SIZE),
        "v": half(b.sequences, 1, KV_HEADS, SIZE),
        "seqlens_k": i32(b.sequences),
        **(
            {"block_table": i32(b.sequences, WIDTH)}
            if table
            else {"cache_batch_idx": i32(b.sequences)}
        ),
    }


def batch_prefill(b):
    cache = half(BLOCKS * BLOCK, 1, KV_HEADS, SIZE)
    made = flash(b, k=cache, v=cache, kv_indptr=i32(b.sequences + 1), kv_page_indices=i32(3000))
    del made["cu_seqlens_k"]
    return made


def cutlass_mla(b):
    return {
        "out": half(b.sequences, HEADS, 64), "q_nope": half(b.sequences, HEADS, 64),
        "q_pe": half(b.sequences, HEADS, 64), "kv_c_and_k_pe_cache": half(BLOCKS, BLOCK, 72),
        "seq_lens": i32(b.sequences), "page_table": i32(b.sequences, WIDTH),
        "workspace": t("unsigned char", 64),
    }  # fmt: skip


def sm100_mla(b):
    return cutlass_mla(b) | {"lse": t("float", b.sequences, HEADS)}


def flash_mla(b):
    return {
        "q": half(b.sequences, 1, HEADS, 72), "kv_cache": half(BLOCKS, BLOCK, 1, 72),
        "head_size_v": number(64), "seqlens_k": i32(b.sequences),
        "block_table": i32(b.sequences, WIDTH), "softmax_scale": number(0.1),
        "is_causal": number(True), "tile_scheduler_metadata": i32(80, 8),
        "num_splits": i32(b.sequences + 1), "is_fp8": number(False),
    }  # fmt: skip


def vllm_flash_mla(b):
    return {f"_{place}": value for place, value in enumerate(flash_mla(b).values())}


def latent(b, **more):
    return {
        "Q": half(b.queries, HEADS, 72), "KV": half(BLOCKS * BLOCK, 1, 1, 72),
        "qo_indptr": i32(b.sequences + 1), "kv_indptr": i32(b.sequences + 1),
        "kv_page_indices": i32(3000), "kv_last_page_lens": i32(b.sequences),
        "max_seqlen_q": number(b.longest_query), "splitData": t("float", b.queries, 4, HEADS, 64),
        "splitLse": t("float", b.queries, 4, HEADS, 1), **more,
    }  # fmt: skip


def mla_stage1(b):
    return latent(b, num_kv_splits_indptr=i32(b.sequences + 1), output=half(b.queries, HEADS, 64))


def mla_planned(b):
    return latent(
        b, work_meta_data=t("long unsigned int", 2), work_indptr=i32(9), work_info_set=i32(16, 8),
        output=half(b.queries, HEADS, 64),
    )  # fmt: skip


def mla_v4(b):
    return latent(b, split_indptr=i32(b.sequences + 1), output=half(b.queries, HEADS, 64))


def mla_keys_spelt_out(b):
    made = latent(
        b, K=half(BLOCKS * BLOCK, KV_HEADS, 192), V=half(BLOCKS * BLOCK, KV_HEADS, 128),
        work_indptr=i32(9), work_info_set=i32(16, 8), output=half(b.queries, HEADS, 128),
    )  # fmt: skip
    del made["KV"], made["kv_last_page_lens"]
    return made


def vllm_mla(b):
    return {
        "q": half(b.queries, HEADS, 72), "kv_buffer": half(BLOCKS * BLOCK, 1, 1, 72),
        "o": half(b.queries, HEADS, 64), "qo_indptr": i32(b.sequences + 1),
        "max_seqlen_qo": number(1), "kv_indptr": i32(b.sequences + 1), "kv_indices": i32(3000),
        "kv_last_page_lens": i32(b.sequences),
    }  # fmt: skip


def write(b, cache, value_cache=None):
    new = half(b.queries, KV_HEADS, SIZE)
    return {
        "key": new, "value": new, "key_cache": cache, "value_cache": value_cache or cache,
        "slot_mapping": i64(b.queries),
    }  # fmt: skip


SCALAR_SCALES = {"k_scale": t("float"), "v_scale": t("float")}


def write_paged(b):
    return SCALAR_SCALES | write(
        b, half(BLOCKS, KV_HEADS, SIZE // 8, BLOCK, 8), half(BLOCKS, KV_HEADS, SIZE, BLOCK)
    )


def write_flash(b):
    return SCALAR_SCALES | write(b, half(BLOCKS, BLOCK, KV_HEADS, SIZE))


def write_quant(b):
    scales = t("float", KV_HEADS, BLOCKS * BLOCK)
    made = write_paged(b) | {"k_dequant_scales": scales, "v_dequant_scales": scales}
    del made["k_scale"], made["v_scale"]
    return made


def write_cpu(b):
    return write(b, half(BLOCKS, KV_HEADS, BLOCK, SIZE))


def write_mla(b):
    return {
        "kv_c": half(b.queries, 64), "k_pe": half(b.queries, 64),
        "kv_cache": half(BLOCKS, BLOCK, 72), "slot_mapping": i64(b.queries), "scale": t("float"),
    }  # fmt: skip


def write_mla_rope(b):
    made = write_mla(b) | {
        "q_pe": half(b.queries, HEADS, 64), "positions": i64(b.queries),
        "cos_sin_cache": half(ROWS, 64), "kv_cache_scale": t("float"),
    }  # fmt: skip
    del made["scale"]
    return made


def write_mla_aiter(b):
    made = write_mla(b) | {
        "q_nope": half(b.queries, HEADS, 64), "q_pe": half(b.queries, HEADS, 8),
        "q_out": half(b.queries, HEADS, 72), "k_scale": t("float"), "q_scale": t("float"),
        "positions": i64(b.queries), "cos_cache": half(ROWS, 4), "sin_cache": half(ROWS, 4),
        "kv_cache": half(BLOCKS, BLOCK, 1, 72),
    }  # fmt: skip
    del made["scale"]
    return made


def write_indexer(b):
    return {
        "k": half(b.queries, 128), "kv_cache": t("unsigned char", BLOCKS, BLOCK, 132),
        "slot_mapping": i64(b.queries),
    }  # fmt: skip


def store(b, names=("k_cache", "v_cache", "indices"), **more):
    keys, values, slots = names
    new, cache = half(b.queries, KV_HEADS * SIZE), half(3000, KV_HEADS * SIZE)
    return {"k": new, "v": new, keys: cache, values: cache, slots: i64(b.queries), **more}


def store_kv(b):
    return store(b, ("k_cache", "v_cache", "out_loc"))


def downcast(b):
    return store(b, ("k_out", "v_out", "loc"), **SCALAR_SCALES)


def rotary(b):
    return {
        "positions": i64(b.queries), "query": half(b.queries, HEADS * SIZE),
        "key": half(b.queries, KV_HEADS * SIZE), "head_size": number(SIZE),
        "cos_sin_cache": half(ROWS, SIZE),
    }  # fmt: skip


def rotary_lora(b):
    return rotary(b) | {"cos_sin_cache_offsets": i64(b.queries)}


def rotary_aiter(b):
    made = rotary(b) | {"cos_cache": half(ROWS, SIZE // 2), "sin_cache": half(ROWS, SIZE // 2)}
    del made["cos_sin_cache"]
    return made


def rotary_aiter_lora(b):
    return rotary_aiter(b) | {"cos_sin_cache_offsets": i64(b.queries)}


def rotary_in_columns(b):
    x = half(1, b.queries, HEADS, SIZE)
    return {
        "output": x, "input": x, "cos": half(ROWS, 1, 1, SIZE), "sin": half(ROWS, 1, 1, SIZE),
        "positions": i64(1, b.queries),
    }  # fmt: skip


def rotary_in_rows(b):
    x = half(b.queries, 1, HEADS, SIZE)
    table = half(ROWS, 1, 1, SIZE)
    return {
        "output_x": x, "output_y": x, "input_x": x, "input_y": x, "cos": table, "sin": table,
        "positions": i64(b.queries, 1),
    }  # fmt: skip


def rotary_text_and_image(b):
    return rotary(b) | {"positions": i64(3, b.queries)}


def qk_norm_rope(b):
    return {
        "qkv": half(b.queries, 12 * SIZE), "q_weight": half(SIZE), "k_weight": half(SIZE),
        "cos_sin_cache": half(ROWS, SIZE), "position_ids": i64(b.queries),
    }  # fmt: skip


def sgl_rope(b):
    q, k = half(b.queries, HEADS, SIZE), half(b.queries, KV_HEADS, SIZE)
    buffer = half(3000, KV_HEADS, SIZE)
    return {
        "q": q, "k": k, "q_rope": q, "k_rope": k, "cos_sin_cache": t("float", ROWS, SIZE),
        "pos_ids": i64(b.queries), "v": k, "k_buffer": buffer, "v_buffer": buffer,
        "kv_cache_loc": i64(b.queries),
    }  # fmt: skip


def slot_mapping(b):
    return {
        "query_start_loc": i32(b.sequences + 1), "positions": i64(b.queries),
        "block_table": i32(32, WIDTH), "slot_mapping": i64(4096), "block_size": number(BLOCK),
    }  # fmt: skip


def gather(b, **more):
    return {
        "src_cache": half(BLOCKS, BLOCK, 72), "dst": half(250, 72),
        "block_table": i32(b.sequences, WIDTH), **more,
    }  # fmt: skip


def gather_dequant(b):
    return gather(
        b, cu_seq_lens=i32(b.sequences + 1), token_to_seq=i32(250), num_tokens=number(250),
        scale=t("float"), seq_starts=i32(b.sequences),
    )  # fmt: skip


def gather_cp(b):
    return gather(
        b, cu_seq_lens=i32(b.sequences + 1), batch_size=number(b.sequences),
        seq_starts=i32(b.sequences),
    )  # fmt: skip


def gather_upconvert(b):
    return gather(
        b, seq_lens=i32(b.sequences), workspace_starts=i32(b.sequences),
        batch_size=number(b.sequences),
    )  # fmt: skip


def gather_indexer(b):
    return {
        "kv_cache": t("unsigned char", BLOCKS, BLOCK, 132), "dst_k": t("unsigned char", 250, 128),
        "dst_scale": t("unsigned char", 250, 4), "block_table": i32(b.sequences, WIDTH),
        "cu_seq_lens": i32(b.sequences + 1),
    }  # fmt: skip


def scan(b):
    x = half(32, b.queries)
    return {
        "u": x, "delta": x, "A": t("float", 32, 16), "B": half(1, 16, b.queries),
        "C": half(1, 16, b.queries), "query_start_loc": i32(b.sequences + 1),
        "cache_indices": i32(b.sequences), "has_initial_state": t("bool", b.sequences),
        "ssm_states": half(40, 32, 16), "null_block_id": number(0),
    }  # fmt: skip


def conv_prefill(b):
    return {
        "x": half(32, b.queries), "weight": half(32, 4), "conv_states": half(40, 32, 3),
        "query_start_loc": i32(b.sequences + 1), "cache_indices": i32(b.sequences),
        "has_initial_state": t("bool", b.sequences), "pad_slot_id": number(-1),
    }  # fmt: skip


def conv_update(b):
    return {
        "x": half(b.sequences, 32), "conv_state": half(40, 32, 3), "weight": half(32, 4),
        "conv_state_indices": i32(b.sequences), "pad_slot_id": number(-1),
    }  # fmt: skip


def conv_update_aiter(b):
    return conv_update(b) | {"out": half(b.sequences, 32)}


VARLEN = (UNTOLD, DECODE, WHOLE)
ALONE = (UNTOLD, DECODE, GENERATING)
FORMS = {
    "_C::paged_attention_v1": (v1, ALONE),
    "_C::paged_attention_v2": (v2, ALONE),
    "_rocm_C::paged_attention": (rocm, VARLEN),
    "aiter::paged_attention_rocm": (aiter_rocm, ALONE),
    "aiter::paged_attention_v1": (aiter_v1, VARLEN),
    "aiter::paged_attention_ragged": (ragged, ALONE),
    "aiter::pa_fwd_asm": (asm, ALONE),
    "aiter::_pa_fwd_asm": (asm, ALONE),
    "aiter::pa_fwd_naive": (naive, ALONE),
    "aiter::_pa_ps_fwd_asm": (persistent, ALONE),
    "_vllm_fa2_C::varlen_fwd": (fa2, VARLEN),
    "_vllm_fa2_C::fwd_kvcache": (kvcache, ALONE),
    "_vllm_fa3_C::fwd": (fa3, VARLEN),
    "flash_attn_3::fwd": (fa3, VARLEN),
    "flash_attn::_flash_attn_varlen_forward": (fa2, VARLEN),
    "flash_attn::_flash_attn_varlen_backward": (rows_backward, (UNTOLD, DECODE, WHOLE)),
    "aiter::mha_varlen_fwd": (mha_paged, VARLEN),
    "aiter::fmha_v3_varlen_fwd": (rows, (UNTOLD, DECODE, PROMPTS)),
    "aiter::mha_batch_prefill": (batch_prefill, VARLEN),
    "_C::sm100_cutlass_mla_decode": (sm100_mla, ALONE),
    "sgl_kernel::cutlass_mla_decode": (cutlass_mla, ALONE),
    "sgl_kernel::fwd_kvcache_mla": (flash_mla, ALONE),
    "_flashmla_C::fwd_kvcache_mla": (vllm_flash_mla, ALONE),
    "aiter::mla_decode_stage1_asm_fwd": (mla_stage1, ALONE),
    "aiter::mla_decode_v4_asm": (mla_v4, ALONE),
    "aiter::mla_prefill_asm_fwd": (latent, VARLEN),
    "aiter::mla_prefill_ps_asm_fwd": (mla_keys_spelt_out, VARLEN),
    "vllm::rocm_aiter_mla_decode_fwd": (vllm_mla, ALONE),
    "_C_cache_ops::reshape_and_cache": (write_paged, VARLEN),
    "_C_cache_ops::reshape_and_cache_flash": (write_flash, VARLEN),
    "_C_cache_ops::concat_and_cache_mla": (write_mla, VARLEN),
    "_C_cache_ops::concat_and_cache_mla_rope_fused": (write_mla_rope, VARLEN),
    "_C_cache_ops::indexer_k_quant_and_cache": (write_indexer, VARLEN),
    "_C::cpu_attn_reshape_and_cache": (write_cpu, VARLEN),
    "aiter::reshape_and_cache": (write_paged, VARLEN),
    "aiter::reshape_and_cache_flash": (write_flash, VARLEN),
    "aiter::reshape_and_cache_with_pertoken_quant": (write_quant, VARLEN),
    "aiter::reshape_and_cache_with_block_quant": (write_quant, VARLEN),
    "aiter::concat_and_cache_mla": (write_mla, VARLEN),
    "aiter::indexer_k_quant_and_cache": (write_indexer, VARLEN),
    "sglang::store_cache": (store, VARLEN),
    "sgl_kernel::store_kv_cache": (store_kv, VARLEN),
    "sgl_kernel::downcast_fp8": (downcast, VARLEN),
    "_C::rotary_embedding": (rotary, VARLEN),
    "_C::batched_rotary_embedding": (rotary_lora, VARLEN),
    "_C::fused_qk_norm_rope": (qk_norm_rope, VARLEN),
    "sgl_kernel::rotary_embedding": (rotary, VARLEN),
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache": (sgl_rope, VARLEN),
    "aiter::rotary_embedding_fwd": (rotary_aiter, VARLEN),
    "_C::compute_slot_mapping_kernel_impl": (slot_mapping, VARLEN),
    "_C_cache_ops::gather_and_maybe_dequant_cache": (gather_dequant, VARLEN),
    "_C_cache_ops::gather_cache": (gather_cp, VARLEN),
    "_C_cache_ops::cp_gather_cache": (gather_cp, VARLEN),
    "_C_cache_ops::cp_gather_and_upconvert_fp8_kv_cache": (gather_upconvert, VARLEN),
    "_C_cache_ops::cp_gather_indexer_k_quant_cache": (gather_indexer, VARLEN),
    "aiter::cp_gather_indexer_k_quant_cache": (gather_indexer, VARLEN),
    "_C::selective_scan_fwd": (scan, VARLEN),
    "sgl_kernel::causal_conv1d_fwd": (conv_prefill, VARLEN),
    "sgl_kernel::causal_conv1d_update": (conv_update, ALONE),
    "aiter::causal_conv1d_update": (conv_update_aiter, ALONE),
    "_C::reshape_and_cache": (write_paged, VARLEN),
    "_C::reshape_and_cache_flash": (write_flash, VARLEN),
    "_C::concat_and_cache_mla": (write_mla, VARLEN),
    "_C::indexer_k_quant_and_cache": (write_indexer, VARLEN),
    "_C::causal_conv1d_fwd": (conv_prefill, VARLEN),
    "_C::causal_conv1d_update": (conv_update, ALONE),
    "aiter::pa_ps_fwd_asm": (persistent, ALONE),
    "aiter::mha_varlen_bwd": (rows_backward, VARLEN),
    "aiter::fmha_v3_varlen_bwd": (rows_backward, VARLEN),
    "aiter::reshape_and_cache_with_block_quant_for_asm_pa": (write_quant, VARLEN),
    "aiter::fused_qk_rope_concat_and_cache_mla": (write_mla_aiter, VARLEN),
    "aiter::batched_rotary_embedding": (rotary_aiter_lora, VARLEN),
    "aiter::rope_cached_positions_fwd_impl": (rotary_in_columns, VARLEN),
    "aiter::rope_cached_positions_2c_fwd_impl": (rotary_in_rows, VARLEN),
    "xformers_flash::flash_fwd": (xformers, VARLEN),
}  # fmt: skip
CASES = [(name, form, batch) for name, (form, batches) in FORMS.items() for batch in batches]
CASES += [
    ("sgl_kernel::fwd", lambda b: {**fa3(b), "scheduler_metadata": NOTHING}, b) for b in VARLEN
]
CASES += [("_vllm_fa2_C::fwd_kvcache", lambda b: kvcache(b, table=False), b) for b in ALONE]
CASES += [("aiter::mla_decode_stage1_asm_fwd", mla_planned, b) for b in ALONE]
CASES += [("aiter::mha_varlen_fwd", rows, b) for b in (UNTOLD, DECODE, WHOLE)]
CASES += [("_C::rotary_embedding", rotary_text_and_image, b) for b in VARLEN]

Q_STARTS = ("query_start_loc", "cu_seqlens_q", "cu_query_lens", "qo_indptr")
K_LENGTHS = ("seq_lens", "context_lens", "seqused_k", "seqlens_k")
TABLES = ("block_tables", "block_table", "page_table")
PAGES = ("kv_page_indices", "kv_indices")
SLOTS = ("slot_mapping", "indices", "out_loc", "loc", "kv_cache_loc")
STATES = ("cache_indices", "conv_state_indices")


class Checker:
    """Applies a rule to each integer tensor of a call; none may be left without one."""

    def __init__(self, name, inputs, batch, recorded):
        self.name, self.batch, self.recorded = name, batch, recorded
        self.left = {
            name: value.tolist()
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor)
            and value.dtype in (torch.int32, torch.int64, torch.bool)
        }

    def take(self, *names):
        return next((self.left.pop(name) for name in names if name in self.left), None)

    def number(self, *names):
        return next((int(self.recorded[n][2]) for n in names if n in self.recorded), None)

    def totals(self, lengths, generating, prompts):
        count = self.batch.generating
        assert sum(lengths[:count]) == generating
        assert sum(lengths[count:]) == prompts

    def queries(self):
        starts = self.take(*Q_STARTS)
        if starts is None:
            each = self.batch.queries // self.batch.sequences
            return [each] * self.batch.sequences
        longest = self.number("max_seqlen_q", "max_qlen")
        lengths = rules.starts(starts, total=self.batch.queries, longest=longest)
        assert len(lengths) == self.batch.sequences
        if self.batch.step:
            self.totals(lengths, self.batch.generating, self.batch.prompt_queries)
        return lengths

    def keys(self, lengths, queries, *, room):
        longest = self.number("max_seq_len", "max_seqlen_k", "max_context_len")
        rules.key_lengths(lengths, queries, longest=longest or room)
        if longest and self.batch is UNTOLD:
            assert max(lengths) == longest
        if self.batch.keys:
            self.totals(lengths, *self.batch.keys)


def pool_of(name, recorded):
    """Blocks and block size of a cache, from the layouts of each operator."""
    if name == "_C::cpu_attn_reshape_and_cache":
        return BLOCKS, recorded["key_cache"][1][2]
    for name in ("key_cache", "K", "kcache", "k_cache", "k_out", "k_buffer", "KV", "kv_buffer",
                 "kv_cache", "kv_c_and_k_pe_cache", "src_cache", "k", "key"):  # fmt: skip
        if name in recorded:
            dims = recorded[name][1]
            if name in ("k_cache", "k_out", "k_buffer") or (len(dims) == 3 and name == "K"):
                return dims[0], 1
            return dims[0], dims[3] if len(dims) == 5 else dims[1]
    return None


def check_attention(c):
    queries = c.queries()
    lengths, table = c.take(*K_LENGTHS), c.take(*TABLES)
    blocks, block_size = pool_of(c.name, c.recorded)
    appended = 1 if "kcache" in c.recorded else 0
    if lengths is not None:
        lengths = [length + appended for length in lengths]
    starts = c.take("cu_seqlens_k")
    if table is None and starts is not None:
        lengths = rules.starts(
            starts, total=c.recorded["k"][1][0], longest=c.number("max_seqlen_k")
        )
        rules.key_lengths(lengths, queries, longest=c.number("max_seqlen_k"))
        if c.batch.keys:
            c.totals(lengths, *c.batch.keys)
        return
    if starts is not None and lengths is not None:
        assert set(starts) == {0}
    elif starts is not None:
        lengths = rules.starts(starts, total=starts[-1])
    indptr, indices = c.take("kv_indptr"), c.take(*PAGES)
    if indptr is not None:
        last = c.take("kv_last_page_lens")
        told = rules.pages(indptr, indices, last, page_size=block_size, blocks=blocks)
        if lengths is None:
            lengths = told
        else:
            assert [-(-n // block_size) * block_size for n in lengths] == told
    room = WIDTH * BLOCK if indices is None else len(indices) * block_size
    if "max_num_partitions" in c.recorded:
        room = c.number("max_num_partitions") * 256
    c.keys(lengths, queries, room=room)
    if table is not None:
        rules.block_table(table, lengths, block_size=block_size, blocks=blocks)
    chosen = c.take("cache_batch_idx")
    if chosen is not None:
        rules.rows_of(chosen, count=32)
    splits = c.take("num_kv_splits_indptr", "split_indptr")
    if splits is not None:
        rules.splits(splits, sequences=c.batch.sequences, each=4)
    for name in ("scheduler_metadata", "tile_scheduler_metadata", "work_indptr", "work_info",
                 "work_info_set"):  # fmt: skip
        made = c.take(name)
        assert made is None or set(torch.tensor(made).flatten().tolist()) == {7}
    c.take("num_splits")


def check_writes(c):
    slots, positions = c.take(*SLOTS), c.take("positions", "position_ids", "pos_ids")
    offsets = c.take("cos_sin_cache_offsets")
    queries = [1] * c.batch.queries if c.batch is not WHOLE else [1, 1, 1, 30, 30]
    if c.batch is UNTOLD:
        queries = [c.batch.queries]
    if slots is not None:
        blocks, block_size = pool_of(c.name, c.recorded)
        assert len(rules.slots(slots, room=blocks * block_size)) == c.batch.queries
        for prompt in [slots[3:33], slots[33:]] if c.batch is WHOLE else ():
            rules.consecutive_in_blocks(prompt, block_size=block_size)
        if c.batch is DECODE and block_size > 1:
            assert len({slot // block_size for slot in slots}) == 8
    if positions is not None:
        lines = torch.tensor(positions).reshape(-1, c.batch.queries).tolist()
        assert lines == lines[:1] * len(lines)
        rules.positions(lines[0], rows=ROWS)
        rules.counts_up(lines[0], queries)
    assert offsets is None or max(offsets) == 0


def check_slot_mapping(c):
    queries = c.queries()
    positions, table = c.take("positions"), c.take("block_table")
    c.take("slot_mapping")
    rules.positions(positions, rows=WIDTH * BLOCK)
    rules.counts_up(positions, queries)
    rules.block_table(table, [WIDTH * BLOCK] * 32, block_size=BLOCK, blocks=32 * WIDTH)


def check_gather(c):
    sequences = c.batch.sequences
    table, lengths, starts = c.take("block_table"), c.take("seq_lens"), c.take("cu_seq_lens")
    told = lengths or rules.starts(starts, total=250)
    assert sum(told) == 250
    assert len(told) == sequences
    rules.block_table(table, told, block_size=BLOCK, blocks=BLOCKS)
    owners, begin = c.take("token_to_seq"), c.take("workspace_starts")
    if owners is not None:
        rules.owners(owners, told)
    if begin is not None:
        assert begin == [sum(told[:place]) for place in range(sequences)]
    places = c.take("seq_starts")
    assert places is None or all(place % BLOCK == 0 for place in places)


def check_states(c):
    queries = c.queries()
    null = c.number("null_block_id", "pad_slot_id")
    rules.states(c.take(*STATES), count=40, null=null)
    flags = c.take("has_initial_state")
    if flags is not None:
        # Of 60 prompt tokens 90 keys are known: the first prompt goes on, the second is new.
        assert flags == ([True, True, True, True, False] if c.batch is WHOLE else [True] * 8)
        assert len(queries) == len(flags)


def checker_of(name):
    short = name.partition("::")[2]
    for word, check in {
        "slot_mapping": check_slot_mapping, "gather": check_gather, "scan": check_states,
        "conv1d": check_states, "cache_mla": check_attention if "fwd" in short else check_writes,
        "and_cache": check_writes, "store": check_writes, "downcast": check_writes,
        "rotary": check_writes, "rope": check_writes,
    }.items():  # fmt: skip
        if word in short:
            return check
    return check_attention


@pytest.fixture(scope="module")
def calls(resolver, tmp_path_factory):
    """The calls of all cases, from one trace."""
    events = [event_of(name, form(batch)) for name, form, batch in CASES]
    for place, event in enumerate(events):
        event["ts"] = 20 * place
    return list(trace_of(tmp_path_factory.mktemp("cases"), *events).calls())


@pytest.mark.parametrize(
    "case",
    range(len(CASES)),
    ids=[
        f"{name}-{form.__name__}-{batch.sequences}x{batch.queries}{'-told' if batch.step else ''}"
        for name, form, batch in CASES
    ],
)
def test_every_integer_of_a_call_keeps_its_rule(resolver, calls, case):
    name, form, batch = CASES[case]
    recorded = form(batch)
    inputs = inputs_of_call(resolver, calls[case], step=batch.step)
    assert not isinstance(inputs, Skipped), inputs
    if name == "_flashmla_C::fwd_kvcache_mla":
        recorded = flash_mla(batch)
        inputs = {k: inputs[f"_{place}"] for place, k in enumerate(recorded)}
    checker = Checker(name, inputs, batch, recorded)
    checker_of(name)(checker)
    assert checker.left == {}


def test_every_operator_of_these_recipes_is_among_the_cases():
    rooms = ("cache_writes", "flash_attention", "mla", "paged_attention", "states")
    ops = {
        op
        for one in list_recipes()
        for op in one.ops
        if one.function.__module__ in {f"opreplay.recipes.{room}" for room in rooms}
    }
    refused = {"aiter::mla_reduce_v1"}
    assert (
        ops == {name for name, _, _ in CASES} - {"_C::compute_slot_mapping_kernel_impl"} | refused
    )


# A kernel that reads the tables.


def paged_in_floats(b):
    cache = t("float", BLOCKS, KV_HEADS, SIZE // 4, BLOCK, 4)
    tensor = t("float", b.sequences, HEADS, SIZE)
    return v1(b) | {
        "query": tensor, "out": tensor, "key_cache": cache, "scale": number(0.25),
        "value_cache": t("float", BLOCKS, KV_HEADS, SIZE, BLOCK),
    }  # fmt: skip


def written_and_attended(inputs, tokens):
    """Writes each sequence's keys and values where the table says, and attends through it."""
    table = inputs["block_tables"].tolist()
    for row, (keys, values) in zip(table, tokens, strict=True):
        slots = [row[n // BLOCK] * BLOCK + n % BLOCK for n in range(len(keys))]
        torch.ops._C_cache_ops.reshape_and_cache(
            keys, values, inputs["key_cache"], inputs["value_cache"], torch.tensor(slots), "auto",
            torch.ones(()), torch.ones(()),
        )  # fmt: skip
    torch.ops._C.paged_attention_v1(*list(inputs.values())[:-1])
    return inputs["out"]


def dense(inputs, tokens):
    """Attention of each sequence over its own keys and values, without a cache."""
    queries = inputs["query"]
    return torch.stack([
        torch.nn.functional.scaled_dot_product_attention(
            query[:, None], keys.transpose(0, 1), values.transpose(0, 1), scale=0.25,
            enable_gqa=True,
        )[:, 0]
        for query, (keys, values) in zip(queries, tokens, strict=True)
    ])  # fmt: skip


def test_attention_through_the_table_is_dense_attention(resolver, tmp_path):
    inputs = inputs_of(resolver, tmp_path, "_C::paged_attention_v1", paged_in_floats(GENERATING),
                       step=MIXED)  # fmt: skip
    lengths = inputs["seq_lens"].tolist()
    assert sum(lengths) == 300
    tokens = [tuple(torch.randn(2, length, KV_HEADS, SIZE)) for length in lengths]
    torch.testing.assert_close(written_and_attended(inputs, tokens), dense(inputs, tokens))


def share_a_block(inputs):
    inputs["block_tables"][1, 0] = inputs["block_tables"][0, 0]


def forget_a_key(inputs):
    inputs["seq_lens"][0] -= 1


@pytest.mark.parametrize("spoil", [share_a_block, forget_a_key])
def test_a_table_or_length_that_is_wrong_would_show(resolver, tmp_path, spoil):
    inputs = inputs_of(resolver, tmp_path, "_C::paged_attention_v1", paged_in_floats(UNTOLD))
    tokens = [tuple(torch.randn(2, n, KV_HEADS, SIZE)) for n in inputs["seq_lens"].tolist()]
    spoil(inputs)
    assert not torch.allclose(written_and_attended(inputs, tokens), dense(inputs, tokens))


# Caches that are larger than memory.


def test_a_cache_larger_than_the_budget_loses_blocks_and_nothing_else(resolver, tmp_path):
    scales = t("float", BLOCKS, KV_HEADS, BLOCK)
    recorded = asm(DECODE) | {"K_QScale": scales, "V_QScale": scales}
    whole = inputs_of(resolver, tmp_path, "aiter::_pa_fwd_asm", recorded)
    budget = whole["row"].bytes // 2
    inputs = inputs_of(resolver, tmp_path, "aiter::_pa_fwd_asm", recorded, budget=budget)
    blocks = inputs["K"].shape[0]
    assert blocks < BLOCKS
    for name in ("K", "V", "K_QScale", "V_QScale"):
        assert inputs[name].shape == (blocks, *whole[name].shape[1:])
        assert inputs[name].stride() == whole[name].stride()
    one_block = (whole["row"].bytes - inputs["row"].bytes) // (BLOCKS - blocks)
    assert budget - one_block < inputs["row"].bytes <= budget
    assert f"{blocks} of {BLOCKS} recorded blocks" in inputs["row"].assumptions[0]
    rules.block_table(inputs["block_tables"].tolist(), inputs["context_lens"].tolist(),
                      block_size=BLOCK, blocks=blocks)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "recorded", "bytes_"),
    [
        ("aiter::mha_varlen_fwd", rows(WHOLE), 20_000),
        ("_C_cache_ops::reshape_and_cache_flash", write_flash(DECODE), 2_000),
        ("_C_cache_ops::reshape_and_cache_flash", write_flash(DECODE) | {"slot_mapping": i64()}, 8),
    ],
    ids=["keys-in-rows", "not-one-block", "no-room"],
)
def test_what_cannot_lose_blocks_is_over_the_budget(resolver, tmp_path, name, recorded, bytes_):
    skipped = inputs_of(resolver, tmp_path, name, recorded, budget=bytes_)
    assert skipped.reason == "over_memory_budget"


def test_a_recipe_that_fails_for_want_of_blocks_says_so(resolver, tmp_path):
    skipped = inputs_of(
        resolver, tmp_path, "_C_cache_ops::reshape_and_cache_flash", write_flash(WHOLE),
        step=MIXED, budget=20_000,
    )  # fmt: skip
    assert skipped.reason == "recipe_failed"
    assert "of 200 recorded blocks, which the memory budget allows" in skipped.detail


# Metadata comes from the operators that make it.


def planned_for(resolver, tmp_path, name, recorded):
    engine_schemas.planned.clear()
    inputs = inputs_of(resolver, tmp_path, name, recorded, step=MIXED)
    (given,) = engine_schemas.planned
    return inputs, given


def test_the_schedule_of_flash_attention_is_made_for_its_lengths(resolver, tmp_path):
    inputs, given = planned_for(resolver, tmp_path, "flash_attn_3::fwd", fa3(WHOLE))
    assert given[:7] == (5, 40, LONGEST, HEADS, KV_HEADS, SIZE, SIZE)
    assert given[8].tolist() == inputs["seqused_k"].tolist()
    assert given[9].tolist() == inputs["cu_seqlens_q"].tolist()
    assert given[14] == BLOCK
    assert "flash_attn_3::get_scheduler_metadata" in inputs["row"].recipe


@pytest.mark.parametrize(("metadata", "makers"), [(i32(9), 1), (NOTHING, 0)])
def test_a_plan_file_names_the_maker_of_a_schedule_that_there_is(
    resolver, tmp_path, metadata, makers
):
    recorded = fa3(WHOLE) | {"scheduler_metadata": metadata}
    (call,) = calls_of(tmp_path, event_of("flash_attn_3::fwd", recorded)).values()
    kept = planned(resolver.resolve(call), None, find_recipe("flash_attn_3::fwd").produced)
    made = [a.producer for a in kept.arguments if a.producer]
    assert made == ["flash_attn_3::get_scheduler_metadata"] * makers


def test_another_size_of_the_schedule_is_told(resolver, tmp_path):
    recorded = fa3(WHOLE) | {"scheduler_metadata": i32(30)}
    inputs, _ = planned_for(resolver, tmp_path, "_vllm_fa3_C::fwd", recorded)
    assert inputs["row"].assumptions[-1].endswith("made 9 entries here, 30 were recorded")


def test_a_plan_is_written_into_the_tensors_of_the_call(resolver, tmp_path):
    inputs, given = planned_for(
        resolver, tmp_path, "aiter::mla_decode_stage1_asm_fwd", mla_planned(GENERATING)
    )
    places = {
        "qo_indptr": 0, "kv_indptr": 1, "kv_last_page_lens": 2, "work_meta_data": 6,
        "work_info_set": 7, "work_indptr": 8,
    }  # fmt: skip
    for name, place in places.items():
        assert given[place].data_ptr() == inputs[name].data_ptr()
    assert given[3:6] == (HEADS, 1, True)
    assert inputs["work_meta_data"].tolist() == [7, 7]


def test_a_planner_that_reads_on_the_cpu_gets_the_lengths_there(resolver, tmp_path):
    inputs, given = planned_for(
        resolver, tmp_path, "aiter::mla_prefill_ps_asm_fwd", mla_keys_spelt_out(WHOLE)
    )
    assert given[0].tolist() == inputs["qo_indptr"].tolist()
    assert given[1].tolist() == inputs["kv_indptr"].tolist()
    assert given[2].tolist() == given[1].diff().tolist()
    assert given[3:5] == (HEADS // KV_HEADS, KV_HEADS)


def test_latent_attention_is_planned_for_all_heads_of_a_query(resolver, tmp_path):
    inputs, given = planned_for(
        resolver, tmp_path, "_flashmla_C::fwd_kvcache_mla", vllm_flash_mla(GENERATING)
    )
    assert given[0].tolist() == inputs["_3"].tolist()
    assert given[1:] == (HEADS, 1, HEADS, False, None)


# What a call shows of its step.


@pytest.mark.parametrize("name", ["_rocm_C::paged_attention", "aiter::paged_attention_v1"])
def test_sequences_with_more_than_one_query_are_told_to_be_idle(resolver, tmp_path, name):
    form, _ = FORMS[name]
    inputs = inputs_of(resolver, tmp_path, name, form(WHOLE), step=MIXED)
    assert "; 2 of 5 sequences idle;" in inputs["row"].recipe


@pytest.mark.parametrize("name", ["_rocm_C::paged_attention", "aiter::paged_attention_v1"])
def test_a_step_in_which_every_sequence_is_idle_fails(resolver, tmp_path, name):
    form, _ = FORMS[name]
    skipped = inputs_of(resolver, tmp_path, name, form(PROMPTS))
    assert skipped.reason == "recipe_failed"
    assert "and the step has none of query length 1" in skipped.detail


def test_queries_that_are_verified_together_belong_to_one_sequence(resolver, tmp_path):
    batch = Batch(8, 24, 3)
    inputs = inputs_of(resolver, tmp_path, "aiter::_pa_fwd_asm", asm(batch))
    assert inputs["qo_indptr"].tolist() == list(range(0, 25, 3))
    rules.key_lengths(inputs["context_lens"].tolist(), [3] * 8, longest=WIDTH * BLOCK)


def test_a_padded_graph_has_rows_without_keys(resolver, tmp_path):
    step = "execute_context_0(0)_generation_5(5)"
    inputs = inputs_of(resolver, tmp_path, "_vllm_fa2_C::varlen_fwd", fa2(UNTOLD), step=step)
    assert inputs["cu_seqlens_q"].tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5]
    assert inputs["seqused_k"].tolist()[5:] == [0, 0, 0]
    slots = inputs_of(resolver, tmp_path, "_C_cache_ops::reshape_and_cache_flash",
                      write_flash(UNTOLD), step=step)["slot_mapping"]  # fmt: skip
    assert (slots[:5] >= 0).all()
    assert slots[5:].tolist() == [-1, -1, -1]


def test_prompts_whose_longest_has_more_keys_than_queries_go_on_from_others(resolver, tmp_path):
    inputs = inputs_of(resolver, tmp_path, "_vllm_fa2_C::varlen_fwd", fa2(PROMPTS))
    assert inputs["seqused_k"].max() == LONGEST
    assert "no key lengths of prompts: 40 to 300 are drawn" in inputs["row"].assumptions[0]


def test_rows_of_keys_that_the_step_does_not_tell_are_split_behind_each_query(resolver, tmp_path):
    short = "execute_context_2(60)_generation_3(3)"
    inputs = inputs_of(resolver, tmp_path, "aiter::mha_varlen_fwd", rows(WHOLE), step=short)
    assert inputs["cu_seqlens_q"].diff().tolist() == [1, 1, 1, 40, 20]
    # 327 keys were there before: 60 make the longest, the others share the rest.
    assert inputs["cu_seqlens_k"].diff().tolist() == [68, 68, 68, 100, 86]
    assert "does not tell the rows of keys" in inputs["row"].assumptions[0]


def test_queries_that_attend_to_other_rows_share_them_evenly(resolver, tmp_path):
    recorded = rows(Batch(2, 8, 5)) | {
        "k": half(6, KV_HEADS, SIZE), "v": half(6, KV_HEADS, SIZE), "max_seqlen_k": number(4)
    }  # fmt: skip
    inputs = inputs_of(resolver, tmp_path, "aiter::mha_varlen_fwd", recorded)
    assert inputs["cu_seqlens_q"].tolist() == [0, 5, 8]
    assert inputs["cu_seqlens_k"].tolist() == [0, 4, 6]


def test_integers_that_a_recipe_leaves_alone_are_told(resolver, tmp_path):
    recorded = fa2(DECODE) | {"leftpad_k": i32(8)}
    inputs = inputs_of(resolver, tmp_path, "_vllm_fa2_C::varlen_fwd", recorded, step=DECODES)
    assert inputs["row"].assumptions[-1].endswith("_vllm_fa2_C::varlen_fwd: zeros in leftpad_k")


def test_a_step_whose_longest_query_is_another_is_not_used(resolver, tmp_path):
    recorded = fa2(WHOLE) | {"max_seqlen_q": number(20)}
    inputs = inputs_of(resolver, tmp_path, "_vllm_fa2_C::varlen_fwd", recorded, step=MIXED)
    assert "does not fit 5 sequences of 63 queries" in inputs["row"].assumptions[0]


@pytest.mark.parametrize(
    ("key", "value", "page"),
    [
        (half(3200, KV_HEADS, SIZE), half(3200, KV_HEADS, SIZE), 1),
        (half(200, KV_HEADS, SIZE // 8, 16, 8), half(200, KV_HEADS, 2, SIZE, 8), 16),
    ],
    ids=["tokens", "vectors"],
)
def test_the_pages_of_a_prefill_follow_the_layout_of_its_cache(
    resolver, tmp_path, key, value, page
):
    recorded = batch_prefill(WHOLE) | {"k": key, "v": value, "kv_last_page_lens": i32(5)}
    inputs = inputs_of(resolver, tmp_path, "aiter::mha_batch_prefill", recorded, step=MIXED)
    indptr, pages, last = (
        inputs[name].tolist() for name in ("kv_indptr", "kv_page_indices", "kv_last_page_lens")
    )
    keys = rules.pages(indptr, pages, last, page_size=page, blocks=key[1][0])
    assert (sum(keys[:3]), sum(keys[3:])) == WHOLE.keys


@pytest.mark.parametrize(
    ("name", "recorded", "said"),
    [
        ("_C::paged_attention_v1", v1(UNTOLD) | {"key_cache": half(9, 9)},
         "key_cache of _C::paged_attention_v1 has 5 dimensions, recorded is (9, 9)"),
        ("aiter::paged_attention_ragged", ragged(UNTOLD) | {"block_size": number(2)},
         "block_size is 2, the cache has blocks of 1"),
        ("_C::rotary_embedding", rotary(UNTOLD) | {"cos_sin_cache": half(0, SIZE)},
         "no table of cosines with rows"),
        ("_C_cache_ops::reshape_and_cache_flash", write_flash(Batch(1, 4000, 4000)),
         "4000 tokens for a cache of 3200 slots"),
        ("_C::selective_scan_fwd", scan(UNTOLD) | {"ssm_states": half(8, 32, 16)},
         "8 sequences for 7 states"),
        ("_C_cache_ops::gather_and_maybe_dequant_cache",
         gather_dequant(UNTOLD) | {"block_table": i32(8, 1)},
         "num_tokens is 250, the buffer has 250 rows and the blocks hold 128"),
        ("aiter::mla_reduce_v1",
         {"partial_output": half(8, 8, 64), "partial_lse": t("float", 8, 8),
          "reduce_indptr": i32(9), "reduce_partial_map": i32(8), "max_seqlen_q": number(1),
          "num_kv_splits": number(2), "final_output": half(8, 8, 64)},
         "aiter::_get_mla_metadata_v1_impl makes from lengths that this call lacks"),
        ("sgl_kernel::fwd", fa3(UNTOLD),
         "sgl_kernel::get_scheduler_metadata, which makes an argument, is not in this process"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_fail_the_recipe(resolver, tmp_path, name, recorded, said):
    skipped = inputs_of(resolver, tmp_path, name, recorded)
    assert skipped.reason == "recipe_failed"
    assert said in skipped.detail


def test_states_without_indices_are_those_of_the_rows(resolver, tmp_path):
    recorded = conv_update(UNTOLD) | {"conv_state_indices": NOTHING}
    inputs = inputs_of(resolver, tmp_path, "sgl_kernel::causal_conv1d_update", recorded)
    assert inputs["row"].recipe == "each sequence has the state of its own row"


@pytest.mark.parametrize(
    ("name", "form", "said"),
    [
        ("_vllm_fa2_C::varlen_fwd", fa2, "80 of 100 rows of queries"),
        ("aiter::mha_varlen_fwd", rows, "2 of 100 rows of keys"),
    ],
)
def test_rows_beyond_the_recorded_longest_are_told_to_be_padding(
    resolver, tmp_path, name, form, said
):
    inputs = inputs_of(resolver, tmp_path, name, form(Batch(2, 100, 40)))
    assert inputs["cu_seqlens_q"].tolist() == [0, 40, 80]
    assert any(sentence.startswith(said) for sentence in inputs["row"].assumptions)


@pytest.mark.parametrize(
    ("name", "form", "total"),
    [
        ("_C_cache_ops::gather_and_maybe_dequant_cache", gather_dequant, 250),
        ("_C_cache_ops::cp_gather_cache", gather_cp, 8 * WIDTH * BLOCK),
    ],
)
def test_a_workspace_has_more_rows_than_are_gathered(resolver, tmp_path, name, form, total):
    inputs = inputs_of(resolver, tmp_path, name, form(UNTOLD) | {"dst": half(65536, 72)})
    lengths = rules.starts(inputs["cu_seq_lens"].tolist(), total=total)
    table = inputs["block_table"].tolist()
    rules.block_table(table, lengths, block_size=BLOCK, blocks=BLOCKS)
    told = [s for s in inputs["row"].assumptions if "65536 rows" in s]
    assert len(told) == (form is gather_cp)


def renamed(resolved, name):
    arguments = tuple(
        dataclasses.replace(a, name="unheard_of") if a.name == name else a
        for a in resolved.arguments
    )
    return dataclasses.replace(resolved, arguments=arguments)


@pytest.mark.parametrize("name", ["query", "key_cache", "block_tables", "seq_lens"])
def test_r7_an_argument_under_another_name_fails_the_recipe(resolver, tmp_path, name):
    (call,) = calls_of(tmp_path, event_of("_C::paged_attention_v1", v1(UNTOLD))).values()
    changed = renamed(resolver.resolve(call), name)
    made = make_inputs(changed, device="cpu", seed=0, memory_budget=1 << 30)
    assert made.reason == "recipe_failed"
    assert f"_C::paged_attention_v1 has no argument {name!r}" in made.detail
    assert "it has out, " in made.detail


# Without them a kernel has no sequences, no keys, or nowhere to find them.
NEEDED = {
    "_vllm_fa2_C::varlen_fwd": ("cu_seqlens_q",),
    "flash_attn::_flash_attn_varlen_forward": ("cu_seqlens_q",),
    "flash_attn::_flash_attn_varlen_backward": ("cu_seqlens_q",),
    "aiter::mha_varlen_fwd": ("cu_seqlens_q",),
    "aiter::fmha_v3_varlen_fwd": ("cu_seqlens_q",),
    "aiter::mha_varlen_bwd": ("cu_seqlens_q",),
    "aiter::fmha_v3_varlen_bwd": ("cu_seqlens_q",),
    "aiter::mha_batch_prefill": ("cu_seqlens_q", "kv_indptr", "kv_page_indices"),
    "_C::sm100_cutlass_mla_decode": ("seq_lens", "page_table"),
    "sgl_kernel::cutlass_mla_decode": ("seq_lens", "page_table"),
    "sgl_kernel::fwd_kvcache_mla": ("seqlens_k", "block_table"),
    "_C_cache_ops::gather_and_maybe_dequant_cache": ("block_table", "cu_seq_lens"),
    "_C_cache_ops::cp_gather_cache": ("block_table", "cu_seq_lens"),
    "_C_cache_ops::cp_gather_and_upconvert_fp8_kv_cache": ("block_table", "seq_lens"),
    "_C_cache_ops::cp_gather_indexer_k_quant_cache": ("block_table", "cu_seq_lens"),
    "_C_cache_ops::reshape_and_cache": ("slot_mapping",),
    "_C_cache_ops::reshape_and_cache_flash": ("slot_mapping",),
    "_C_cache_ops::concat_and_cache_mla": ("slot_mapping",),
    "_C::rotary_embedding": ("positions",),
}


@pytest.mark.parametrize(("name", "needed"), NEEDED.items(), ids=NEEDED)
def test_r7_what_a_kernel_needs_fails_under_another_name(resolver, tmp_path, name, needed):
    form, _ = FORMS[name]
    (call,) = calls_of(tmp_path, event_of(name, form(UNTOLD))).values()
    for argument in needed:
        changed = renamed(resolver.resolve(call), argument)
        made = make_inputs(changed, device="cpu", seed=0, memory_budget=1 << 30)
        assert getattr(made, "reason", None) == "recipe_failed", argument
        assert "unheard_of" in made.detail.partition("; it has ")[2], argument


def test_r7_integers_under_another_name_are_never_zero_in_silence(resolver, tmp_path):
    seen = {name: form for name, form, batch in CASES if batch is UNTOLD}
    events = [event_of(name, form(UNTOLD)) for name, form in seen.items()]
    for call in trace_of(tmp_path, *events).calls():
        resolved = resolver.resolve(call)
        for argument in resolved.arguments:
            spec = argument.value
            integer = isinstance(spec, TensorSpec) and not spec.dtype.is_floating_point
            if not integer or argument.output or argument.written or spec.dtype is torch.bool:
                continue
            changed = renamed(resolved, argument.name)
            made = make_inputs(changed, device="cpu", seed=0, memory_budget=1 << 30)
            told = (
                made.reason == "recipe_failed"
                if isinstance(made, Skipped)
                else any("unheard_of" in sentence for sentence in made.assumptions)
            )
            assert told, (call.name, argument.name)
