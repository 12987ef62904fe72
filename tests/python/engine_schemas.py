"""Schemas of engines' attention operators as their libraries register them, and registering them.

Sources: torch_bindings.cpp of vLLM, flash_api_torch_lib.cpp of vllm-project/flash-attention,
sgl-kernel/csrc of SGLang, torch_api.cpp of vllm-project/FlashMLA, and the Python signatures of
aiter/ops, from which aiter infers its schemas.
"""

from __future__ import annotations

import moe_schemas
import paged_reference
import torch

PAGED_TAIL = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
    "Tensor block_tables, Tensor seq_lens, int block_size, int max_seq_len, Tensor? alibi_slopes, "
    "str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank, "
    "int blocksparse_local_blocks, int blocksparse_vert_stride, int blocksparse_block_size, "
    "int blocksparse_head_sliding_step) -> ()"
)
VARLEN_TAIL = (
    "float dropout_p, float softmax_scale, float logits_soft_cap, bool zero_tensors, "
    "bool is_causal, int window_size_left, int window_size_right"
)
MHA_TAIL = (
    "Tensor? out=None, Tensor? block_table=None, Tensor? bias=None, Tensor? alibi_slopes=None, "
    "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Generator? gen=None, "
    "Tensor? cu_seqlens_q_padded=None, Tensor? cu_seqlens_k_padded=None"
)
FA3 = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, "
    "Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, {}"
    "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, "
    "bool? pack_gqa, int sm_margin) -> Tensor[]"
)
GET_SCHEDULER_METADATA = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, "
    "int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, bool is_causal, "
    "int window_size_left, int window_size_right, {}bool has_softcap, int num_splits, "
    "bool? pack_gqa, int sm_margin) -> Tensor"
)
CACHE_WRITE = (
    "Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)
QUANT_WRITE = (
    "(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor k_dequant_scales, "
    "Tensor v_dequant_scales, Tensor slot_mapping, bool asm_layout) -> ()"
)
MLA_PLAN = (
    "int num_heads_k, bool is_causal, Tensor work_metadata_ptrs, {}, Tensor reduce_indptr, "
    "Tensor reduce_final_map, Tensor reduce_partial_map, "
)
CONV_UPDATE = (
    "causal_conv1d_update(Tensor! x, Tensor! conv_state, Tensor! weight, Tensor? bias_, "
    "bool silu_activation, Tensor? cache_seqlens_, Tensor? conv_state_indices, "
    "int pad_slot_id) -> ()"
)
CONV_FWD = (
    "causal_conv1d_fwd(Tensor! x, Tensor! weight, Tensor? bias_, Tensor!? conv_states, "
    "Tensor? query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, "
    "bool silu_activation, int pad_slot_id) -> ()"
)
MHA_BACKWARD = (
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
    "float dropout_p, float softmax_scale, bool zero_tensors, bool is_causal, "
    "int window_size_left, int window_size_right, bool deterministic, {}Tensor? dq=None, "
    "Tensor? dk=None, Tensor? dv=None, Tensor? alibi_slopes=None, Tensor? rng_state=None, "
    "Generator? gen=None, Tensor? cu_seqlens_q_padded=None, Tensor? cu_seqlens_k_padded=None) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
PS_ASM = (
    "(Tensor Q, Tensor K, Tensor V, Tensor kv_indptr, Tensor kv_page_indices, "
    "Tensor context_lens, float softmax_scale, int max_qlen=1, Tensor? K_QScale=None, "
    "Tensor? V_QScale=None, Tensor? out_=None, Tensor? qo_indptr=None, "
    "Tensor? work_indptr=None, Tensor? work_info=None, Tensor? splitData=None, "
    "Tensor? splitLse=None, int mask=0, int? high_precision=1, str? kernelName=None, "
    "int quant_type=0) -> "
)
CACHE_OPS = (
    f"reshape_and_cache({CACHE_WRITE}",
    f"reshape_and_cache_flash({CACHE_WRITE}",
    "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor scale) -> ()",
    "indexer_k_quant_and_cache(Tensor k, Tensor! kv_cache, Tensor slot_mapping, "
    "int quant_block_size, str kv_cache_dtype) -> ()",
)
ROTARY = (
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox) -> ()"
)
FLASH_MLA = (
    "fwd_kvcache_mla(Tensor {0}, Tensor {1}, int {2}, Tensor {3}, Tensor {4}, float {5}, bool {6}, "
    "Tensor {7}, Tensor {8}, bool {9}, Tensor? {10}) -> Tensor[]"
)
FLASH_MLA_PLAN = (
    "get_mla_decoding_metadata(Tensor seqlens_k, int num_q_tokens_per_head_k, int h_k, int? h_q, "
    "bool is_fp8_kvcache, int? topk) -> Tensor[]"
)

SCHEMAS = {
    "_C": (
        f"paged_attention_v1(Tensor! out, {PAGED_TAIL}",
        "paged_attention_v2(Tensor! out, Tensor! exp_sums, Tensor! max_logits, Tensor! tmp_out, "
        f"{PAGED_TAIL}",
        ROTARY,
        "batched_rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox, int rot_dim, Tensor cos_sin_cache_offsets) -> ()",
        "fused_qk_norm_rope(Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v, "
        "int head_dim, float eps, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, "
        "bool is_neox, Tensor position_ids) -> ()",
        "sm100_cutlass_mla_decode(Tensor! out, Tensor! lse, Tensor q_nope, Tensor q_pe, "
        "Tensor kv_c_and_k_pe_cache, Tensor seq_lens, Tensor page_table, Tensor workspace, "
        "float scale, int num_kv_splits) -> ()",
        "cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache, "
        "Tensor! value_cache, Tensor slot_mapping, str isa) -> ()",
        "compute_slot_mapping_kernel_impl(Tensor query_start_loc, Tensor positions, "
        "Tensor block_table, Tensor! slot_mapping, int block_size) -> ()",
        "selective_scan_fwd(Tensor! u, Tensor! delta, Tensor! A, Tensor! B, Tensor! C, Tensor? D_, "
        "Tensor!? z_, Tensor? delta_bias_, bool delta_softplus, Tensor? query_start_loc, "
        "Tensor? cache_indices, Tensor? has_initial_state, Tensor! ssm_states, int null_block_id, "
        "int block_size) -> ()",
        CONV_UPDATE,
        CONV_FWD,
        *CACHE_OPS,
    ),
    "_rocm_C": (
        "paged_attention(Tensor! out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, "
        "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
        "Tensor block_tables, Tensor seq_lens, Tensor? query_start_loc, int block_size, "
        "int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, "
        "Tensor v_scale, Tensor? fp8_out_scale, str mfma_type) -> ()",
    ),
    "_C_cache_ops": (
        *CACHE_OPS,
        "concat_and_cache_mla_rope_fused(Tensor positions, Tensor! q_pe, Tensor! k_pe, "
        "Tensor kv_c, Tensor cos_sin_cache, bool is_neox, Tensor slot_mapping, Tensor! kv_cache, "
        "str kv_cache_dtype, Tensor kv_cache_scale) -> ()",
        "gather_and_maybe_dequant_cache(Tensor src_cache, Tensor! dst, Tensor block_table, "
        "Tensor cu_seq_lens, Tensor token_to_seq, int num_tokens, str kv_cache_dtype, "
        "Tensor scale, Tensor? seq_starts) -> ()",
        "cp_gather_cache(Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, "
        "int batch_size, Tensor? seq_starts) -> ()",
        "gather_cache(Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, "
        "int batch_size, Tensor? seq_starts) -> ()",
        "cp_gather_indexer_k_quant_cache(Tensor kv_cache, Tensor! dst_k, Tensor! dst_scale, "
        "Tensor block_table, Tensor cu_seq_lens) -> ()",
        "cp_gather_and_upconvert_fp8_kv_cache(Tensor src_cache, Tensor! dst, Tensor block_table, "
        "Tensor seq_lens, Tensor workspace_starts, int batch_size) -> ()",
    ),
    "_vllm_fa2_C": (
        "varlen_fwd(Tensor! q, Tensor k, Tensor v, Tensor!? out, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, Tensor? block_table, "
        "Tensor? alibi_slopes, int max_seqlen_q, int max_seqlen_k, float p_dropout, "
        "float softmax_scale, bool zero_tensors, bool is_causal, int window_size_left, "
        "int window_size_right, float softcap, bool return_softmax, int num_splits, Tensor? gen) "
        "-> Tensor[]",
        "fwd_kvcache(Tensor! q, Tensor kcache, Tensor vcache, Tensor? k, Tensor? v, "
        "Tensor? seqlens_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? cache_batch_idx, "
        "Tensor? leftpad_k, Tensor? block_table, Tensor? alibi_slopes, Tensor!? out, "
        "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
        "float softcap, bool is_rotary_interleaved, int num_splits) -> Tensor[]",
    ),
    "_vllm_fa3_C": (FA3.format(""), GET_SCHEDULER_METADATA.format("")),
    "flash_attn_3": (
        FA3.format("int attention_chunk, "),
        GET_SCHEDULER_METADATA.format("int attention_chunk, "),
    ),
    "flash_attn": (
        "_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, "
        "float softmax_scale, bool causal, SymInt window_size_left=-1, "
        "SymInt window_size_right=-1, float softcap=0., Tensor? alibi_slopes=None, "
        "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, "
        "Tensor? seqused_k=None, bool zero_tensors=False) -> (Tensor, Tensor, Tensor, Tensor)",
        "_flash_attn_varlen_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
        "Tensor softmax_lse, Tensor!? dq, Tensor!? dk, Tensor!? dv, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, "
        "float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right, "
        "float softcap, Tensor? alibi_slopes, bool deterministic, Tensor? rng_state=None, "
        "bool zero_tensors=False) -> Tensor",
    ),
    "sgl_kernel": (
        FA3.format(""),
        ROTARY,
        "cutlass_mla_decode(Tensor! out, Tensor q_nope, Tensor q_pe, Tensor kv_c_and_k_pe_cache, "
        "Tensor seq_lens, Tensor page_table, Tensor! workspace, float sm_scale, "
        "int num_kv_splits) -> ()",
        FLASH_MLA.format(
            "q", "kv_cache", "head_size_v", "seqlens_k", "block_table", "softmax_scale",
            "is_causal", "tile_scheduler_metadata", "num_splits", "is_fp8", "indices",
        ),
        FLASH_MLA_PLAN,
        "apply_rope_pos_ids_cos_sin_cache(Tensor q, Tensor k, Tensor! q_rope, Tensor! k_rope, "
        "Tensor cos_sin_cache, Tensor pos_ids, bool interleave, bool enable_pdl, int cuda_stream, "
        "Tensor? v, Tensor!? k_buffer, Tensor!? v_buffer, Tensor? kv_cache_loc) -> ()",
        "store_kv_cache(Tensor k_cache, Tensor v_cache, Tensor out_loc, Tensor k, Tensor v) -> ()",
        "downcast_fp8(Tensor k, Tensor v, Tensor k_out, Tensor v_out, Tensor k_scale, "
        "Tensor v_scale, Tensor loc, int mult, int offset, int cuda_stream) -> ()",
        CONV_UPDATE,
        CONV_FWD,
    ),
    "sglang": (
        "store_cache(Tensor k, Tensor v, Tensor! k_cache, Tensor! v_cache, Tensor indices, "
        "int row_bytes, int num_split) -> ()",
    ),
    "_flashmla_C": (FLASH_MLA.format(*(f"_{place}" for place in range(11))), FLASH_MLA_PLAN),
    "xformers_flash": (
        "flash_fwd(Tensor query, Tensor key, Tensor value, Tensor? cu_seqlens_q, "
        "Tensor? cu_seqlens_k, Tensor? seqused_k, int max_seqlen_q, int max_seqlen_k, float p, "
        "float softmax_scale, bool is_causal, int window_left, int window_right, "
        "bool return_softmax, Tensor? block_tables) -> (Tensor, Tensor, Tensor)",
    ),
    "vllm": (
        "rocm_aiter_mla_decode_fwd(Tensor q, Tensor kv_buffer, Tensor! o, Tensor qo_indptr, "
        "SymInt max_seqlen_qo, Tensor? kv_indptr=None, Tensor? kv_indices=None, "
        "Tensor? kv_last_page_lens=None, float sm_scale=1.0, float logit_cap=0.0, "
        "Tensor? q_scale=None, Tensor? kv_scale=None) -> ()",
    ),
    "aiter": (
        "_pa_fwd_asm(Tensor Q, Tensor K, Tensor V, Tensor block_tables, Tensor context_lens, "
        "int block_tables_stride0, int max_qlen=1, Tensor? K_QScale=None, Tensor? V_QScale=None, "
        "Tensor? out_=None, Tensor? qo_indptr=None, int? high_precision=1, "
        "str? kernelName=None) -> ()",
        "pa_fwd_asm(Tensor Q, Tensor K, Tensor V, Tensor block_tables, Tensor context_lens, "
        "int block_tables_stride0, int max_qlen=1, Tensor? K_QScale=None, Tensor? V_QScale=None, "
        "Tensor? out_=None, Tensor? qo_indptr=None, int? high_precision=1, "
        "str? kernelName=None) -> Tensor",
        "pa_fwd_naive(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
        "Tensor context_lens, Tensor k_dequant_scales, Tensor v_dequant_scales, int max_seq_len, "
        "int num_kv_heads, float scale_s, float scale_k, float scale_v, int block_size, "
        "int quant_algo, Tensor? out=None) -> Tensor",
        "paged_attention_rocm(Tensor out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, "
        "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
        "Tensor block_tables, Tensor context_lens, int block_size, int max_context_len, "
        "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, "
        "Tensor? fp8_out_scale=None, int partition_size=256, int mtp=1, Tensor? q_scale=None) "
        "-> Tensor",
        "paged_attention_v1(Tensor out, Tensor workspace_buffer, Tensor query, Tensor key_cache, "
        "Tensor value_cache, float scale, Tensor block_tables, Tensor? cu_query_lens, "
        "Tensor context_lens, int max_context_len, Tensor? alibi_slopes, str kv_cache_dtype, "
        "str kv_cache_layout, float logits_soft_cap, Tensor k_scale, Tensor v_scale, "
        "Tensor? fp8_out_scale=None, int partition_size=256, int mtp=1, int sliding_window=0) "
        "-> Tensor",
        "paged_attention_ragged(Tensor out, Tensor workspace_buffer, Tensor query, "
        "Tensor key_cache, Tensor value_cache, float scale, Tensor kv_indptr, "
        "Tensor kv_page_indices, Tensor kv_last_page_lens, int block_size, "
        "int max_num_partitions, Tensor? alibi_slopes, str kv_cache_dtype, str kv_cache_layout, "
        "float logits_soft_cap, Tensor k_scale, Tensor v_scale, Tensor? fp8_out_scale=None, "
        "int partition_size=256, int mtp=1) -> Tensor",
        f"_pa_ps_fwd_asm{PS_ASM}()",
        f"pa_ps_fwd_asm{PS_ASM}Tensor",
        f"mha_varlen_bwd{MHA_BACKWARD.format('')}",
        "fmha_v3_varlen_bwd"
        f"{MHA_BACKWARD.format('bool is_v3_atomic_fp32, int how_v3_bf16_cvt, ')}",
        "get_pa_metadata_v1(Tensor seqlens_qo_indptr, Tensor pages_kv_indptr, Tensor context_lens, "
        "int num_heads_per_head_k, " + MLA_PLAN.format("Tensor work_indptr, Tensor work_info")
        + "int kv_granularity=16, int block_size=16, int max_seqlen_qo=-1, int uni_seqlen_qo=-1, "
        "bool fast_mode=True, int topk=-1, int max_split_per_batch=-1) -> ()",
        "mla_decode_stage1_asm_fwd(Tensor Q, Tensor KV, Tensor qo_indptr, Tensor kv_indptr, "
        "Tensor kv_page_indices, Tensor kv_last_page_lens, Tensor? num_kv_splits_indptr, "
        "Tensor? work_meta_data, Tensor? work_indptr, Tensor? work_info_set, int max_seqlen_q, "
        "int page_size, int nhead_kv, float softmax_scale, Tensor splitData, Tensor splitLse, "
        "Tensor output, Tensor? lse=None, Tensor? q_scale=None, Tensor? kv_scale=None) -> ()",
        "_get_mla_metadata_v1_impl(Tensor seqlens_qo_indptr, Tensor seqlens_kv_indptr, "
        "Tensor kv_last_page_lens, int num_heads_per_head_k, "
        + MLA_PLAN.format("Tensor work_info_set, Tensor work_indptr")
        + "int page_size=1, int kv_granularity=16, int max_seqlen_qo=-1, int uni_seqlen_qo=-1, "
        "bool fast_mode=True, int topk=-1, int max_split_per_batch=-1) -> ()",
        "mla_decode_v4_asm(Tensor Q, Tensor? qrope, Tensor KV, Tensor? kvrope, Tensor qo_indptr, "
        "Tensor kv_indptr, Tensor kv_page_indices, Tensor split_indptr, Tensor? sink, "
        "int max_seqlen_q, float softmax_scale, int out_16_nosplit, int num_kv_splits, "
        "Tensor splitData, Tensor splitLse, Tensor output, Tensor? valid_split_count, "
        "int use_valid_split_count_reduce, Tensor? kv_last_page_lens) -> ()",
        "mla_prefill_asm_fwd(Tensor Q, Tensor KV, Tensor qo_indptr, Tensor kv_indptr, "
        "Tensor kv_page_indices, Tensor kv_last_page_lens, int max_seqlen_q, "
        "float softmax_scale, Tensor splitData, Tensor splitLse) -> ()",
        "mla_prefill_ps_asm_fwd(Tensor Q, Tensor K, Tensor V, Tensor qo_indptr, Tensor kv_indptr, "
        "Tensor kv_page_indices, Tensor? work_indptr, Tensor? work_info_set, int max_seqlen_q, "
        "float softmax_scale, bool is_causal, Tensor splitData, Tensor splitLse, Tensor output, "
        "Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
        "get_ps_metadata_v1(Tensor seqlens_qo_indptr, Tensor pages_kv_indptr, Tensor context_lens, "
        "int gqa_ratio, int num_heads_k, Tensor work_metadata_ptrs, Tensor work_indptr, "
        "Tensor work_info, Tensor reduce_indptr, Tensor reduce_final_map, "
        "Tensor reduce_partial_map, int qhead_granularity=1, int qlen_granularity=256, "
        "int kvlen_granularity=16, int block_size=16, bool is_causal=True) -> ()",
        "mla_reduce_v1(Tensor partial_output, Tensor partial_lse, Tensor reduce_indptr, "
        "Tensor? reduce_final_map, Tensor reduce_partial_map, int max_seqlen_q, "
        "int num_kv_splits, Tensor final_output, Tensor? final_lse=None) -> ()",
        f"mha_varlen_fwd(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor? cu_seqlens_k, "
        f"int max_seqlen_q, int max_seqlen_k, int min_seqlen_q, {VARLEN_TAIL}, int sink_size, "
        f"bool return_softmax_lse, bool return_dropout_randval, {MHA_TAIL}, "
        "Tensor? sink_ptr=None) -> (Tensor, Tensor, Tensor, Tensor)",
        f"fmha_v3_varlen_fwd(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        f"Tensor? cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, int min_seqlen_q, "
        f"{VARLEN_TAIL}, bool return_softmax_lse, bool return_dropout_randval, "
        f"int how_v3_bf16_cvt, {MHA_TAIL}) -> (Tensor, Tensor, Tensor, Tensor)",
        f"mha_batch_prefill(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor kv_indptr, "
        f"Tensor kv_page_indices, int max_seqlen_q, int max_seqlen_k, {VARLEN_TAIL}, "
        "int sink_size, bool return_softmax_lse, bool return_dropout_randval, Tensor? out=None, "
        "Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? q_descale=None, "
        "Tensor? k_descale=None, Tensor? v_descale=None, Tensor? kv_block_descale=None, "
        "Tensor? kv_last_page_lens=None, Tensor? block_table=None, Tensor? seqlen_k=None, "
        "Tensor? sink_ptr=None, Generator? gen=None) -> (Tensor, Tensor, Tensor, Tensor)",
        "reshape_and_cache(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, "
        "Tensor slot_mapping, str kv_cache_dtype, Tensor? k_scale=None, Tensor? v_scale=None, "
        "bool asm_layout=False) -> ()",
        "reshape_and_cache_flash(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, "
        "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
        f"reshape_and_cache_with_pertoken_quant{QUANT_WRITE}",
        f"reshape_and_cache_with_block_quant{QUANT_WRITE}",
        "reshape_and_cache_with_block_quant_for_asm_pa"
        f"{QUANT_WRITE.replace('asm_layout)', 'asm_layout, int ori_block_size=128)')}",
        "fused_qk_rope_concat_and_cache_mla(Tensor q_nope, Tensor q_pe, Tensor kv_c, "
        "Tensor k_pe, Tensor kv_cache, Tensor q_out, Tensor slot_mapping, Tensor k_scale, "
        "Tensor q_scale, Tensor positions, Tensor cos_cache, Tensor sin_cache, bool is_neox, "
        "bool is_nope_first) -> ()",
        "batched_rotary_embedding(Tensor positions, Tensor query, Tensor key, int head_size, "
        "Tensor cos_cache, Tensor sin_cache, bool is_neox, bool is_nope_first, int rot_dim, "
        "Tensor cos_sin_cache_offsets) -> ()",
        "rope_cached_positions_fwd_impl(Tensor output, Tensor input, Tensor cos, Tensor sin, "
        "Tensor positions, int rotate_style, bool reuse_freqs_front_part, bool nope_first) -> ()",
        "rope_cached_positions_2c_fwd_impl(Tensor output_x, Tensor output_y, Tensor input_x, "
        "Tensor input_y, Tensor cos, Tensor sin, Tensor positions, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor kv_cache, Tensor slot_mapping, "
        "str kv_cache_dtype, Tensor scale) -> ()",
        "indexer_k_quant_and_cache(Tensor k, Tensor kv_cache, Tensor slot_mapping, "
        "int quant_block_size, str scale_fmt, bool preshuffle=False) -> ()",
        "cp_gather_indexer_k_quant_cache(Tensor kv_cache, Tensor dst_k, Tensor dst_scale, "
        "Tensor block_table, Tensor cu_seq_lens, bool preshuffle=False) -> ()",
        "rotary_embedding_fwd(Tensor positions, Tensor query, Tensor key, int head_size, "
        "Tensor cos_cache, Tensor sin_cache, bool is_neox, bool is_nope_first) -> ()",
        "causal_conv1d_update(Tensor x, Tensor conv_state, Tensor weight, Tensor? bias, "
        "Tensor out, bool use_silu, Tensor? cache_seqlens, Tensor? conv_state_indices, "
        "int pad_slot_id) -> ()",
    ),
}  # fmt: skip


def registered():
    """Inside, the operators exist; those without a stand-in do nothing."""
    schemas = [f"{namespace}::{form}" for namespace, forms in SCHEMAS.items() for form in forms]
    return moe_schemas.registered(*schemas, kernels=STAND_INS)


def schema_of(op):
    """The schema of an operator here, read by torch."""
    namespace, _, name = op.partition("::")
    (text,) = (s for s in SCHEMAS[namespace] if s.partition("(")[0] == name)
    return torch._C.parse_schema(f"{op}{text[len(name) :]}")


planned = []
"""What each stand-in of a producer was given, in schema order."""


def _scheduler_metadata(*arguments):
    planned.append(arguments)
    return torch.full((9,), 7, dtype=torch.int32)


def _mla_metadata(*arguments):
    planned.append(arguments)
    return [torch.full((4, 8), 7, dtype=torch.int32), torch.arange(9, dtype=torch.int32)]


def _work(*arguments):
    """Fills what planners fill: sevens into the work and its bounds."""
    planned.append(arguments)
    (pointers,) = (
        place
        for place, given in enumerate(arguments)
        if isinstance(given, torch.Tensor) and given.dtype is torch.uint64
    )
    for given in arguments[pointers : pointers + 3]:
        given.fill_(7)


STAND_INS = {
    "_C::paged_attention_v1": paged_reference.paged_attention,
    "_C_cache_ops::reshape_and_cache": paged_reference.reshape_and_cache,
    "_vllm_fa3_C::get_scheduler_metadata": _scheduler_metadata,
    "flash_attn_3::get_scheduler_metadata": _scheduler_metadata,
    "sgl_kernel::get_mla_decoding_metadata": _mla_metadata,
    "_flashmla_C::get_mla_decoding_metadata": _mla_metadata,
    "aiter::get_pa_metadata_v1": _work,
    "aiter::get_ps_metadata_v1": _work,
    "aiter::_get_mla_metadata_v1_impl": _work,
}
"""The operators that do something: the reference kernels, and producers of metadata."""
