"""Schemas of MoE operators whose libraries are not installed, as these register them."""

from __future__ import annotations

import contextlib
import itertools
import re

import torch
from kineto_events import calls_of, op
from made_calls import TensorSpec

from opreplay.inputs import Inputs, make_inputs
from opreplay.resolve.resolver import Resolver
from opreplay.trace.call import Skipped

_PROFILER_NAMES = {
    torch.float16: "c10::Half",
    torch.float32: "float",
    torch.bfloat16: "c10::BFloat16",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.int32: "int",
    torch.int64: "long int",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


def aiter(name, arguments):
    """aiter infers schemas of its Python functions: every tensor may be changed, ints are SymInt.

    Arguments are tensors, ``?`` may be None, and what follows a colon is a type of its own.
    """
    numbers = itertools.count()
    typed = []
    for argument in arguments.split():
        argument, _, default = argument.partition("=")
        argument, _, kind = argument.partition(":")
        bare = argument.rstrip("?")
        if not kind:
            kind = f"Tensor(a{next(numbers)}!)"
        optional = "?" if argument.endswith("?") else ""
        default = f"={default}" if default else "=None" if optional else ""
        typed.append(f"{kind}{optional} {bare}{default}")
    return f"aiter::{name}({', '.join(typed)}) -> ()"


_SORTED = "sorted_token_ids sorted_expert_ids num_valid_ids"
_CK_TAIL = (
    "out topk:SymInt kernelName?:str w{0}_scale? a{0}_scale? block_m:SymInt=32 sorted_weights? "
    "quant_type:SymInt=0 activation:SymInt=0 splitk:SymInt=1 use_non_temporal_load:bool=False "
    "dst_type?:str is_shuffled:bool=True"
)
_FMOE = "sorted_token_ids sorted_weights sorted_expert_ids num_valid_ids topk:SymInt"
_G1U1 = (
    f"out input gate down {_FMOE} input_scale fc1_scale fc2_scale kernelName:str='' "
    "fc2_smooth_scale? activation:SymInt=0"
)
_SORTING = (
    "topk_ids topk_weights sorted_token_ids sorted_weights sorted_expert_ids num_valid_ids moe_buf "
    "num_experts:SymInt unit_size:SymInt local_expert_mask? num_local_tokens?"
)
_CKTILE = (
    "XQ WQ Y sorted_ids sorted_expert_ids max_token_ids topk:SymInt n_padded_zeros:SymInt=0 "
    "k_padded_zeros:SymInt=0 topk_weight? x_scale? w_scale? exp_bias? activation:SymInt=0 "
    "block_m:SymInt=32 split_k:SymInt=1 kernel_name:str=''"
)
_FUSED = (
    "hidden_states w1 w2 topk_weight topk_ids expert_mask? activation:SymInt=0 "
    "quant_type:SymInt=0 doweight_stage1:bool=False w1_scale? w2_scale? a1_scale? a2_scale? "
    "block_size_M:SymInt=-1 num_local_tokens?"
)
_MX_SORT = (
    "sorted_token_ids sorted_expert_ids cumsum_tensor reverse_sorted sorted_weights m_indices "
    "bf16_zero_out bf16_zero_workspace M_logical:SymInt NE:SymInt TOPK:SymInt D_HIDDEN:SymInt "
    "D_INTER:SymInt MB:SymInt prologue:SymInt"
)
_MX_TAIL = "NE:SymInt TOPK:SymInt D_HIDDEN:SymInt MB:SymInt"

AITER = [
    aiter("ck_moe_stage1", f"hidden_states w1 w2 {_SORTED} {_CK_TAIL.format(1)}"),
    aiter(
        "ck_moe_stage2",
        f"inter_states w1 w2 {_SORTED} " + _CK_TAIL.format(2),
    ),
    aiter(
        "moe_stage1_g1u1",
        f"input w1 w2 {_SORTED} out inter_dim:SymInt kernelName:str block_m:SymInt "
        "ksplit:SymInt=0 activation:SymInt=0 quant_type:SymInt=0 a1_scale? w1_scale? "
        "sorted_weights?",
    ),
    aiter("moe_cktile2stages_gemm1_ck", _CKTILE),
    aiter("moe_cktile2stages_gemm2_ck", _CKTILE),
    aiter(
        "_opus_moe_stage1_a8w4_fwd_raw",
        f"hidden_states w1 hidden_scale w1_scale bias {_SORTED} out out_scale topk:SymInt "
        "block_m:SymInt kernelName:str",
    ),
    aiter(
        "_opus_moe_stage2_a8w4_decode_fwd_raw",
        "inter_states w2 a2_scale w2_scale sorted_token_ids sorted_weights sorted_expert_ids "
        "num_valid_ids out token_num:SymInt topk:SymInt block_m:SymInt kernel_id:SymInt "
        "inter_dim_pad:SymInt",
    ),
    aiter("fmoe", f"out input gate down {_FMOE}"),
    aiter("fmoe_g1u1", _G1U1),
    aiter("fmoe_g1u1_tkw1", _G1U1),
    aiter(
        "fmoe_g1u1_a16",
        f"out input gate down {_FMOE} fc1_scale fc2_scale fc1_smooth_scale fc2_smooth_scale "
        "activation:SymInt=0",
    ),
    aiter(
        "fmoe_int8_g1u0",
        f"out input gate down {_FMOE} input_scale fc1_scale fc2_scale fc2_smooth_scale "
        "activation:SymInt=0",
    ),
    aiter(
        "fmoe_int8_g1u0_a16",
        f"out input gate down {_FMOE} fc1_scale fc2_scale fc1_smooth_scale fc2_smooth_scale",
    ),
    aiter(
        "fmoe_fp8_blockscale_g1u1",
        f"out input gate down {_FMOE} input_scale fc1_scale fc2_scale kernelName:str='' "
        "fc_scale_blkn:SymInt=128 fc_scale_blkk:SymInt=128 fc2_smooth_scale? activation:SymInt=0 "
        "block_size_M:SymInt=32",
    ),
    aiter(
        "moe_smooth_per_token_scaled_quant_v2",
        f"out input scales smooth_scale {_SORTED} block_m:SymInt shuffle_scale:bool=False "
        "transpose_out:bool=False",
    ),
    aiter(
        "fused_dynamic_mx_quant_moe_sort_hip",
        "out scales input sorted_ids num_valid_ids token_num:SymInt block_m:SymInt "
        "group_size:SymInt=32 sorted_weights?",
    ),
    aiter(
        "mxfp4_moe_sort_hip",
        "out_scale scale sorted_ids num_valid_ids token_num:SymInt cols:SymInt",
    ),
    aiter(
        "mxfp4_moe_sort_scales",
        "a_scale sorted_token_ids cumsum_tensor a_scale_sorted_shuffled "
        f"{_MX_TAIL} max_sorted:SymInt",
    ),
    aiter("mxfp4_moe_scatter_reduce", f"flat_out reverse_sorted sorted_weights out {_MX_TAIL}"),
    aiter(
        "mxfp4_moe_scatter_reduce_q",
        f"flat_out_q flat_out_scale reverse_sorted sorted_weights out {_MX_TAIL}",
    ),
    aiter("mxfp4_moe_sort", f"topk_ids topk_weight {_MX_SORT}"),
    aiter("mxfp4_moe_sort_quant", f"a_input topk_ids topk_weight {_MX_SORT}"),
    aiter("moe_sorting_fwd", f"{_SORTING} dispatch_policy:SymInt=0"),
    aiter(
        "moe_sorting_opus_fwd",
        f"{_SORTING} workspace? dispatch_policy:SymInt=0 local_topk_ids? m_indices? "
        "reverse_sorted?",
    ),
    aiter("fused_moe_", f"{_FUSED} moe_sorting_dispatch_policy:SymInt=0 dtype?:ScalarType"),
    aiter("fhmoe_", _FUSED),
    aiter("moe_smoothquant_fwd", "out input x_scale topk_ids y_scale"),
    aiter("silu_and_mul_bias", "out input expert_ids bias"),
    aiter("swiglu_and_mul_bias", "out input expert_ids bias"),
    aiter("gelu_and_mul_bias", "out input expert_ids bias"),
    aiter(
        "moe_align_block_size",
        "topk_ids num_experts:SymInt block_size:SymInt sorted_token_ids experts_ids token_nums "
        "num_tokens_post_pad",
    ),
    aiter(
        "_topk_softmax",
        "topk_weights topk_indices token_expert_indices gating_output softmax_workspace "
        "need_renorm:bool num_shared_experts:SymInt=0 shared_expert_scoring_func:str=''",
    ),
    aiter(
        "topk_softmax_asm",
        "topk_weights topk_indices token_expert_indices gating_output need_renorm:bool",
    ),
    aiter("topk_sigmoid", "topk_weights topk_indices gating_output"),
    aiter(
        "biased_grouped_topk_hip",
        "gating_output correction_bias topk_weights topk_ids num_expert_group:SymInt "
        "topk_grp:SymInt need_renorm:bool routed_scaling_factor:float=1.0",
    ),
    aiter(
        "grouped_topk",
        "gating_output topk_weights topk_ids num_expert_group:SymInt topk_grp:SymInt "
        "need_renorm:bool scoring_func:str='softmax' routed_scaling_factor:float=1.0",
    ),
    aiter(
        "_moe_fused_gate",
        "input bias topk_weights topk_ids num_expert_group:SymInt topk_group:SymInt topk:SymInt "
        "num_fused_shared_experts:SymInt routed_scaling_factor:float",
    ),
    aiter("topk_gating_fwd", "topk_weights topk_indices gating_output"),
]

_EXPERTS = (
    "(Tensor{} hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids, "
    "str activation='silu', bool apply_router_weight_on_input=False, bool use_fp8_w8a8=False, "
    "SymInt global_num_experts=-1, Tensor? expert_map=None, Tensor? w1_scale=None, "
    "Tensor? w2_scale=None, Tensor? a1_scale=None, Tensor? a2_scale=None, "
    "SymInt[]? block_shape=None)"
)
_MARLIN_TABLES = (
    "Tensor! workspace, Tensor sorted_token_ids, Tensor! expert_ids, "
    "Tensor! num_tokens_past_padded, Tensor! topk_weights, int moe_block_size, int top_k, "
    "bool mul_topk_weights, "
)
_PERMUTE = (
    "(Tensor input, Tensor topk_ids, Tensor token_expert_indices, Tensor? expert_map, "
    "int n_expert, int n_local_expert, int topk, int? align_block_size, Tensor! permuted_input, "
    "Tensor! expert_first_token_offset, Tensor! inv_permuted_idx, Tensor! permuted_idx, "
    "Tensor! m_indices) -> ()"
)

VLLM = [
    "_moe_C::topk_softmax(Tensor! topk_weights, Tensor! topk_indices, "
    "Tensor! token_expert_indices, Tensor gating_output, bool renormalize, Tensor? bias, "
    "Tensor? is_padding) -> ()",
    "_moe_C::topk_sigmoid(Tensor! topk_weights, Tensor! topk_indices, "
    "Tensor! token_expert_indices, Tensor gating_output, bool renormalize, Tensor? bias, "
    "float routed_scaling_factor, Tensor? is_padding) -> ()",
    "_moe_C::topk_softplus_sqrt(Tensor! topk_weights, Tensor! topk_indices, "
    "Tensor! token_expert_indices, Tensor gating_output, bool renormalize, Tensor? bias, "
    "Tensor? input_ids, Tensor? tid2eid, Tensor? is_padding) -> ()",
    "_moe_C::grouped_topk(Tensor scores, int n_group, int topk_group, int topk, "
    "bool renormalize, float routed_scaling_factor, Tensor bias, int scoring_func) "
    "-> (Tensor, Tensor)",
    "_moe_C::moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, "
    "Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad, "
    "Tensor? maybe_expert_map) -> ()",
    "_moe_C::sgl_moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, "
    "Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad) -> ()",
    "_moe_C::batched_moe_align_block_size(int max_tokens_per_batch, int block_size, "
    "Tensor expert_num_tokens, Tensor! sorted_token_ids, Tensor! experts_ids, "
    "Tensor! num_tokens_post_pad) -> ()",
    "_moe_C::moe_lora_align_block_size(Tensor topk_ids, Tensor token_lora_mapping, "
    "int num_experts, int block_size, int max_loras, int max_num_tokens_padded, "
    "int max_num_m_blocks, Tensor! sorted_token_ids, Tensor! experts_ids, "
    "Tensor! num_tokens_post_pad, Tensor! adapter_enabled, Tensor! lora_ids, "
    "Tensor? maybe_expert_map) -> ()",
    "_moe_C::moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, "
    "Tensor? expert_map=None) -> ()",
    "_moe_C::moe_wna16_gemm(Tensor input, Tensor! output, Tensor b_qweight, Tensor b_scales, "
    "Tensor? b_qzeros, Tensor? topk_weights, Tensor sorted_token_ids, Tensor expert_ids, "
    "Tensor num_tokens_post_pad, int top_k, int BLOCK_SIZE_M, int BLOCK_SIZE_N, "
    "int BLOCK_SIZE_K, int bit) -> Tensor",
    "_moe_C::moe_wna16_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight, "
    "Tensor? b_bias_or_none, Tensor! b_scales, Tensor? a_scales, Tensor? global_scale, "
    "Tensor? b_zeros_or_none, Tensor? g_idx_or_none, Tensor? perm_or_none, "
    f"{_MARLIN_TABLES}int b_type_id, int size_m, int size_n, int size_k, bool is_full_k, "
    "bool use_atomic_add, bool use_fp32_reduce, bool is_zp_float, int thread_k, int thread_n, "
    "int blocks_per_sm) -> Tensor",
    "_moe_C::marlin_gemm_moe(Tensor! a, Tensor! b_q_weights, Tensor! sorted_ids, "
    "Tensor! topk_weights, Tensor! topk_ids, Tensor! b_scales, Tensor! b_zeros, Tensor! g_idx, "
    "Tensor! perm, Tensor! workspace, int b_q_type_id, int size_m, int size_n, int size_k, "
    "bool is_k_full, int num_experts, int topk, int moe_block_size, bool replicate_input, "
    "bool apply_weights) -> Tensor",
    f"_moe_C::moe_permute{_PERMUTE}",
    f"_moe_C::moe_permute_with_scratch{_PERMUTE}",
    "_moe_C::moe_unpermute(Tensor permuted_hidden_states, Tensor topk_weights, "
    "Tensor inv_permuted_idx, Tensor? expert_first_token_offset, int topk, "
    "Tensor! hidden_states) -> ()",
    "_moe_C::shuffle_rows(Tensor input_tensor, Tensor dst2src_map, Tensor! output_tensor) -> ()",
    "_C::ggml_moe_a8(Tensor X, Tensor W, Tensor sorted_token_ids, Tensor expert_ids, "
    "Tensor num_tokens_post_padded, int type, SymInt row, SymInt top_k, SymInt tokens) -> Tensor",
    "_C::ggml_moe_a8_vec(Tensor X, Tensor W, Tensor topk_ids, int top_k, int type, SymInt row, "
    "SymInt tokens) -> Tensor",
    "_C::cpu_fused_moe(Tensor(a0!) output, Tensor input, Tensor w13, Tensor w2, "
    "Tensor? w13_bias, Tensor? w2_bias, Tensor topk_weights, Tensor topk_id, bool skip_weighted, "
    "str act, str isa) -> ()",
    "_C::cutlass_moe_mm(Tensor! out_tensors, Tensor a_tensors, Tensor b_tensors, "
    "Tensor a_scales, Tensor b_scales, Tensor expert_offsets, Tensor problem_sizes, "
    "Tensor a_strides, Tensor b_strides, Tensor c_strides, bool per_act_token, "
    "bool per_out_ch) -> ()",
    "_C::get_cutlass_moe_mm_data(Tensor topk_ids, Tensor! expert_offsets, "
    "Tensor! problem_sizes1, Tensor! problem_sizes2, Tensor! input_permutation, "
    "Tensor! output_permutation, int num_experts, int n, int k, Tensor? blockscale_offsets, "
    "bool is_gated) -> ()",
    "_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets(Tensor expert_first_token_offset, "
    "Tensor! problem_sizes1, Tensor! problem_sizes2, int n, int k, bool swap_ab) -> ()",
    "_C::get_cutlass_batched_moe_mm_data(Tensor! expert_offsets, Tensor! problem_sizes1, "
    "Tensor! problem_sizes2, Tensor expert_num_tokens, int num_local_experts, int padded_m, "
    "int n, int k) -> ()",
    "_C::get_cutlass_pplx_moe_mm_data(Tensor! expert_offsets, Tensor! problem_sizes1, "
    "Tensor! problem_sizes2, Tensor expert_num_tokens, int num_local_experts, int padded_m, "
    "int n, int k) -> ()",
    "_C::persistent_masked_m_silu_mul_quant(Tensor input, Tensor counts, Tensor! y_q, "
    "Tensor! y_s, bool use_ue8m0) -> ()",
    "_C::cutlass_fp4_group_mm(Tensor! out, Tensor a, Tensor b, Tensor a_blockscale, "
    "Tensor b_blockscales, Tensor alphas, Tensor problem_sizes, Tensor expert_offsets, "
    "Tensor sf_offsets) -> ()",
    "_C::cutlass_mxfp4_group_mm(Tensor! out, Tensor a, Tensor b, Tensor a_blockscale, "
    "Tensor b_blockscales, Tensor problem_sizes, Tensor expert_offsets, Tensor sf_offsets) -> ()",
    "_C::cutlass_w4a8_moe_mm(Tensor! out_tensors, Tensor a_tensors, Tensor b_tensors, "
    "Tensor a_scales, Tensor b_scales, Tensor b_group_scales, int b_group_size, "
    "Tensor expert_offsets, Tensor problem_sizes, Tensor a_strides, Tensor b_strides, "
    "Tensor c_strides, Tensor group_scale_strides, str? maybe_schedule) -> ()",
    "_C::scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input, "
    "Tensor input_global_scale, Tensor input_offset_by_experts, "
    "Tensor output_scale_offset_by_experts) -> ()",
    "_C::silu_and_mul_scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, "
    "Tensor input, Tensor input_global_scale, Tensor input_offset_by_experts, "
    "Tensor output_scale_offset_by_experts) -> ()",
    "_C::mxfp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input, "
    "Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts, int n_experts) -> ()",
    "_C::silu_and_mul_mxfp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input, "
    "Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts, int n_experts) -> ()",
    "_C::mxfp8_experts_quant(Tensor input, Tensor problem_sizes, Tensor expert_offsets, "
    "Tensor blockscale_offsets, Tensor! quant_output, Tensor! scale_factor) -> ()",
    "_C::cutlass_mxfp8_grouped_mm(Tensor a, Tensor b, Tensor sfa, Tensor sfb, Tensor! out, "
    "Tensor problem_sizes, Tensor expert_offsets, Tensor blockscale_offsets) -> ()",
    f"vllm::inplace_fused_experts{_EXPERTS.format('(a0!)')} -> ()",
    f"vllm::outplace_fused_experts{_EXPERTS.format('')} -> Tensor",
    "vllm::rocm_aiter_fused_moe(Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weight, "
    "Tensor topk_ids, Tensor? expert_mask=None, SymInt activation_method=0, "
    "SymInt quant_method=0, bool doweight_stage1=False, Tensor? w1_scale=None, "
    "Tensor? w2_scale=None, Tensor? a1_scale=None, Tensor? a2_scale=None, "
    "Tensor? num_local_tokens=None, ScalarType? output_dtype=None) -> Tensor",
    "vllm::rocm_aiter_asm_moe_tkw1(Tensor hidden_states, Tensor w1, Tensor w2, "
    "Tensor topk_weights, Tensor topk_ids, Tensor? fc1_scale=None, Tensor? fc2_scale=None, "
    "Tensor? fc1_smooth_scale=None, Tensor? fc2_smooth_scale=None, bool a16=False, "
    "Tensor? per_tensor_quant_scale=None, Tensor? expert_mask=None, "
    "SymInt activation_method=0) -> Tensor",
    "vllm::rocm_aiter_topk_softmax(Tensor(a0!) topk_weights, Tensor(a1!) topk_indices, "
    "Tensor(a2!) token_expert_indices, Tensor gating_output, bool renormalize) -> ()",
    "vllm::rocm_aiter_topk_sigmoid(Tensor(a0!) topk_weights, Tensor(a1!) topk_indices, "
    "Tensor gating_output) -> ()",
    "vllm::rocm_aiter_biased_grouped_topk(Tensor gating_output, Tensor correction_bias, "
    "Tensor(a2!) topk_weights, Tensor(a3!) topk_ids, SymInt num_expert_group, SymInt topk_group, "
    "bool need_renorm, float routed_scaling_factor=1.0) -> ()",
    "vllm::rocm_aiter_grouped_topk(Tensor gating_output, Tensor(a1!) topk_weights, "
    "Tensor(a2!) topk_ids, SymInt num_expert_group, SymInt topk_group, bool need_renorm, "
    "str scoring_func='softmax', float routed_scaling_factor=1.0) -> ()",
]

ALIGN_FORMS = {
    "6 arguments": "",
    "7 arguments": ", Tensor! cumsum_buffer",
    "8 arguments": ", Tensor! cumsum_buffer, bool pad_sorted_token_ids",
    "8 older arguments": ", Tensor! token_cnts_buffer, Tensor! cumsum_buffer",
}
"""What follows the first six arguments of SGLang's moe_align_block_size."""

SGLANG_ALIGN = (
    "sgl_kernel::moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, "
    "Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad{}) -> ()"
)

SGLANG = [
    "sgl_kernel::topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, "
    "bool renormalize, float moe_softcapping, Tensor? correction_bias) -> ()",
    "sgl_kernel::topk_sigmoid(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, "
    "bool renormalize, Tensor? correction_bias) -> ()",
    "sgl_kernel::moe_fused_gate(Tensor input, Tensor bias, int num_expert_group, int topk_group, "
    "int topk, int num_fused_shared_experts, float routed_scaling_factor, "
    "bool apply_routed_scaling_factor_on_output) -> Tensor[]",
    "sgl_kernel::prepare_moe_input(Tensor topk_ids, Tensor expert_offsets, "
    "Tensor? blockscale_offsets, Tensor problem_sizes1, Tensor problem_sizes2, "
    "Tensor input_permutation, Tensor output_permutation, int num_experts, int n, int k) -> ()",
    "sgl_kernel::get_cutlass_w4a8_moe_mm_data(Tensor topk_ids, Tensor! expert_offsets, "
    "Tensor! problem_sizes1, Tensor! problem_sizes2, Tensor! input_permutation, "
    "Tensor! output_permutation, int num_experts, int n, int k) -> ()",
    "sgl_kernel::shuffle_rows(Tensor input, Tensor dst2src_map, Tensor output) -> ()",
    "sgl_kernel::apply_shuffle_mul_sum(Tensor input, Tensor output, Tensor permutation, "
    "Tensor? factors) -> ()",
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a_ptrs, Tensor b_ptrs, "
    "Tensor out_ptrs, Tensor a_scales_ptrs, Tensor b_scales_ptrs, Tensor a, Tensor b, "
    "Tensor scales_a, Tensor scales_b, Tensor stride_a, Tensor stride_b, Tensor stride_c, "
    "Tensor layout_sfa, Tensor layout_sfb, Tensor problem_sizes, Tensor expert_offsets, "
    "Tensor workspace) -> ()",
    "sgl_kernel::cutlass_fp4_group_mm(Tensor! output, Tensor a, Tensor b, Tensor a_blockscale, "
    "Tensor b_blockscale, Tensor alphas, Tensor ab_strides, Tensor c_strides, "
    "Tensor problem_sizes, Tensor expert_offsets, Tensor sf_offsets) -> ()",
    "sgl_kernel::scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input, "
    "Tensor input_global_scale, Tensor input_offset_by_experts, "
    "Tensor output_scale_offset_by_experts) -> ()",
    "sgl_kernel::silu_and_mul_scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, "
    "Tensor input, Tensor input_global_scale, Tensor mask, bool use_silu_and_mul) -> ()",
    "sgl_kernel::cutlass_w4a8_moe_mm(Tensor! d, Tensor a, Tensor b, Tensor a_scales, "
    "Tensor b_scales, Tensor expert_offsets, Tensor problem_sizes, Tensor a_strides, "
    "Tensor b_strides, Tensor d_strides, Tensor s_strides, int chunk_size, int topk) -> ()",
    "sgl_kernel::moe_wna16_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight, "
    "Tensor! b_scales, Tensor? b_zeros_or_none, Tensor? g_idx_or_none, Tensor? perm_or_none, "
    f"{_MARLIN_TABLES}bool is_ep, int b_q_type_id, int size_m, int size_n, int size_k, "
    "bool is_k_full, bool use_atomic_add, bool use_fp32_reduce, bool is_zp_float) -> Tensor",
    f"sglang::inplace_fused_experts{_EXPERTS.format('(a0!)')} -> ()",
    f"sglang::outplace_fused_experts{_EXPERTS.format('')} -> Tensor",
]

DENSE = [
    "_C::silu_and_mul(Tensor! result, Tensor input) -> ()",
    "_rocm_C::LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor",
    "_rocm_C::wvSplitK(Tensor in_a, Tensor in_b, Tensor? in_bias, int CuCount) -> Tensor",
    "_rocm_C::wvSplitKQ(Tensor in_a, Tensor in_b, Tensor? in_bias, Tensor! out_c, "
    "Tensor scale_a, Tensor scale_b, int CuCount) -> ()",
]


@contextlib.contextmanager
def registered(*schemas, kernels=None):
    """Registers operators for as long as it lasts; a kernel of one is found by its full name."""
    libraries = {}
    try:
        for schema in schemas:
            namespace, _, form = schema.partition("::")
            name = form.partition("(")[0]
            if torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}"):
                continue  # The library is installed.
            if namespace not in libraries:
                libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
            kernel = (kernels or {}).get(f"{namespace}::{name}", lambda *arguments, **named: None)
            libraries[namespace].define(_numbered(form))
            libraries[namespace].impl(name, kernel, "CompositeExplicitAutograd")
        yield
    finally:
        for library in libraries.values():
            library._destroy()


def _numbered(form):
    """Gives changed tensors the names that torch.library asks for."""
    numbers = itertools.count()
    return re.sub(r"Tensor ?!", lambda _: f"Tensor(m{next(numbers)}!)", form)


def recorded(operator, named):
    """Types, dims and values as the profiler writes them, in the order of the schema."""
    (schema,) = torch._C._jit_get_schemas_for_operator(operator)
    absent = named.keys() - {parameter.name for parameter in schema.arguments}
    assert not absent, f"{operator} has no {absent}"
    for parameter in schema.arguments:
        value = named.get(parameter.name, parameter.default_value)
        if isinstance(value, TensorSpec):
            yield _PROFILER_NAMES[value.dtype], list(value.dims), ""
        elif value is None or isinstance(value, str):
            yield "", [], ""
        else:
            yield "Scalar", [], str(value)


def resolved_of(tmp_path, operator, **named):
    """Writes an event, reads it and resolves it."""
    types, dims, values = zip(*recorded(operator, named), strict=True)
    strides = [[] if not d else list(torch.empty(d, device="meta").stride()) for d in dims]
    event = op(operator, types=types, dims=dims, strides=strides, values=values)
    (call,) = calls_of(tmp_path, event).values()
    resolved = Resolver(device="cpu").resolve(call)
    assert not isinstance(resolved, Skipped), resolved
    return resolved


def inputs_of(tmp_path, operator, parameters=None, **named):
    """The arguments of a recorded event by name, and what was said of them."""
    resolved = resolved_of(tmp_path, operator, **named)
    made = make_inputs(resolved, device="cpu", seed=3, memory_budget=1 << 30, parameters=parameters)
    if isinstance(made, Skipped):
        return made
    assert isinstance(made, Inputs)
    names = [argument.name for argument in resolved.arguments]
    return dict(zip(names, made.arguments, strict=True)) | {
        "recipe": made.recipe, "assumptions": made.assumptions, "resolved": resolved,
        "all": made.arguments,
    }  # fmt: skip
