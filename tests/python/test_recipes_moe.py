"""Every MoE operator, from a recorded event to arguments that the rules of its kernel accept."""

from dataclasses import replace
from types import SimpleNamespace

import moe_rules as rule
import pytest
import torch
from made_calls import f32, i32, i64, mask, tensor
from moe_schemas import (
    AITER,
    ALIGN_FORMS,
    DENSE,
    SGLANG,
    SGLANG_ALIGN,
    VLLM,
    inputs_of,
    registered,
    resolved_of,
)

from opreplay.inputs import make_inputs

M, K, E, D, N, BLOCK = 37, 2, 8, 16, 24, 4
AITER_LENGTH = M * K + E * BLOCK - K
VLLM_LENGTH = M * K + E * (BLOCK - 1)
PAIRS = M * K
U8, F8, BF16 = torch.uint8, torch.float8_e4m3fn, torch.bfloat16


def bf16(*dims):
    return tensor(BF16, *dims)


def u8(*dims):
    return tensor(U8, *dims)


@pytest.fixture(scope="module", autouse=True)
def libraries():
    with registered(*AITER, *VLLM, *SGLANG, *DENSE):
        yield


def made(tmp_path, op, /, parameters=None, **named):
    inputs = inputs_of(tmp_path, op, parameters, **named)
    assert isinstance(inputs, dict), inputs
    return SimpleNamespace(**inputs)


def refused(tmp_path, op, /, parameters=None, **named):
    skipped = inputs_of(tmp_path, op, parameters, **named)
    assert not isinstance(skipped, dict), "the recipe took it"
    assert skipped.reason == "recipe_failed"
    return skipped.detail


def aiter_tables(length=AITER_LENGTH, block=BLOCK, **names):
    names = {"ids": "sorted_token_ids", "experts": "sorted_expert_ids", "valid": "num_valid_ids",
             **names}  # fmt: skip
    buffers = {"ids": i32(length), "experts": i32(-(-length // block)), "valid": i32(2)}
    return {names[kind]: buffer for kind, buffer in buffers.items() if names[kind]}


FMOE = {
    "out": bf16(M, D), "input": bf16(M, D), "gate": bf16(E, 2 * N, D), "down": bf16(E, D, N),
    **aiter_tables(), "sorted_weights": f32(AITER_LENGTH), "topk": K,
}  # fmt: skip
A16 = {"fc1_scale": f32(E, 2 * N), "fc2_scale": f32(E, D)}
SCALED = A16 | {"input_scale": f32(M, 1)}
SMOOTH = {"fc1_smooth_scale": f32(E, D), "fc2_smooth_scale": f32(E, N)}
CK = {"w1": bf16(E, 2 * N, D), "w2": bf16(E, D, N), "topk": K, "block_m": BLOCK}
CKTILE = {
    "WQ": bf16(E, 2 * N, D), "topk": K, "block_m": BLOCK,
    **aiter_tables(ids="sorted_ids", valid="max_token_ids"),
}  # fmt: skip
AITER_SORTED = {
    "ck_moe_stage1": {
        "hidden_states": bf16(M, D), "out": bf16(M, K, N), "sorted_weights": f32(AITER_LENGTH),
        **CK, **aiter_tables(),
    },
    "ck_moe_stage2": {
        "inter_states": bf16(M, K, N), "out": bf16(M, D), "sorted_weights": f32(AITER_LENGTH),
        **CK, **aiter_tables(),
    },
    "moe_stage1_g1u1": {
        "input": bf16(M, D), "w1": bf16(E, 2 * N, D), "w2": bf16(E, D, N), "out": bf16(M, K, N),
        "inter_dim": N, "block_m": BLOCK, "kernelName": "", **aiter_tables(),
    },
    "moe_cktile2stages_gemm1_ck": {"XQ": bf16(M, D), "Y": bf16(M, K, N), **CKTILE},
    "moe_cktile2stages_gemm2_ck": {
        "XQ": bf16(M * K, N), "Y": bf16(M, D), "topk_weight": f32(AITER_LENGTH), **CKTILE,
    },
    "_opus_moe_stage1_a8w4_fwd_raw": {
        "hidden_states": tensor(F8, M, D), "w1": u8(E, 2 * N, D // 2), "hidden_scale": f32(M),
        "w1_scale": u8(E, 2 * N), "bias": f32(E, 2 * N), "out": tensor(F8, M, K, N),
        "out_scale": f32(M), "topk": K,
        "block_m": BLOCK, "kernelName": "", **aiter_tables(),
    },
    "_opus_moe_stage2_a8w4_decode_fwd_raw": {
        "inter_states": tensor(F8, M, K, N), "w2": u8(E, D, N // 2), "a2_scale": f32(M),
        "w2_scale": u8(E, D), "sorted_weights": f32(AITER_LENGTH), "out": bf16(M, D),
        "token_num": M, "topk": K, "block_m": BLOCK, "kernel_id": 0, "inter_dim_pad": 0,
        **aiter_tables(),
    },
    "fmoe": FMOE,
    "fmoe_g1u1": FMOE | SCALED,
    "fmoe_g1u1_tkw1": FMOE | SCALED,
    "fmoe_g1u1_a16": FMOE | A16 | SMOOTH,
    "fmoe_int8_g1u0": FMOE | SCALED | {"fc2_smooth_scale": f32(E, N)},
    "fmoe_int8_g1u0_a16": FMOE | A16 | SMOOTH,
    "fmoe_fp8_blockscale_g1u1": FMOE | SCALED | {"block_size_M": BLOCK},
    "moe_smooth_per_token_scaled_quant_v2": {
        "out": tensor(F8, M, K, D), "input": bf16(M, D), "scales": f32(M * K),
        "smooth_scale": f32(E, D), "block_m": BLOCK, **aiter_tables(),
    },
    "fused_dynamic_mx_quant_moe_sort_hip": {
        "out": u8(M * K, D // 2), "scales": u8(AITER_LENGTH, 8), "input": bf16(M * K, D),
        "token_num": M, "block_m": BLOCK, **aiter_tables(ids="sorted_ids", experts=""),
    },
    "mxfp4_moe_sort_scales": {
        "a_scale": u8(M, 8), "a_scale_sorted_shuffled": u8(AITER_LENGTH, 8), "NE": E, "TOPK": K,
        "D_HIDDEN": D, "MB": BLOCK, "max_sorted": AITER_LENGTH,
        **aiter_tables(experts="", valid="cumsum_tensor"),
    },
}  # fmt: skip


def given(inputs, *names):
    return next((getattr(inputs, name) for name in names if hasattr(inputs, name)), None)


@pytest.mark.parametrize("op", AITER_SORTED)
def test_aiter_kernels_read_each_pair_once_with_its_slot(tmp_path, op):
    a = made(tmp_path, f"aiter::{op}", **AITER_SORTED[op])
    pairs = rule.aiter_sorted(
        given(a, "sorted_token_ids", "sorted_ids"),
        given(a, "sorted_expert_ids"),
        given(a, "num_valid_ids", "max_token_ids", "cumsum_tensor"),
        tokens=M, top_k=K, block=BLOCK, experts=E,
        weights=given(a, "sorted_weights", "topk_weight"),
    )  # fmt: skip
    assert a.recipe.startswith(f"{M} tokens of {K} of {E} experts, uniform; 8 active, max/mean")
    rows = int(given(a, "num_valid_ids", "max_token_ids", "cumsum_tensor")[0])
    assert a.recipe.endswith(f"; {rows} rows in blocks of {BLOCK} for {pairs} pairs")
    rule.positive(*(t for n, t in vars(a).items() if "_scale" in n and is_float(t)))


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def test_a_sort_of_scales_says_what_it_takes_for_experts_and_blocks(tmp_path):
    length = M * K + E * 32 - K
    a = made(
        tmp_path, "aiter::mxfp4_moe_sort_hip", out_scale=u8(length, 8), scale=u8(M * K, 1),
        token_num=M, cols=D, **aiter_tables(length, 32, ids="sorted_ids", experts=""),
    )  # fmt: skip
    rule.aiter_sorted(a.sorted_ids, None, a.num_valid_ids, tokens=M, top_k=K, block=32, experts=E)
    assert a.assumptions == (
        "nothing tells the rows of a block, 32 were taken",
        "nothing tells the experts, 8 explain the length of the table",
    )


def test_a_rank_of_four_reads_the_pairs_of_its_experts_alone(tmp_path):
    length = M * K + 4 * E * BLOCK - K
    a = made(
        tmp_path, "aiter::ck_moe_stage1", hidden_states=bf16(M, D), out=bf16(M, K, N),
        **CK, **aiter_tables(length),
    )  # fmt: skip
    pairs = rule.aiter_sorted(
        a.sorted_token_ids, a.sorted_expert_ids, a.num_valid_ids, tokens=M, top_k=K, block=BLOCK,
        experts=E, local=True,
    )  # fmt: skip
    assert 0 < pairs < M * K / 2
    assert f"of {4 * E} experts, {E} here" in a.recipe
    rows = int(a.num_valid_ids[0])
    assert a.recipe.endswith(f"; {rows} rows in blocks of {BLOCK} for {pairs} pairs")
    assert a.assumptions == ("nothing tells which of 32 experts are here, the first 8 were",)


def test_an_adaptive_buffer_of_few_tokens_holds_their_table(tmp_path):
    tokens, experts, block = 3, 64, 32
    length = 6 * block  # Six experts at most are active.
    a = made(
        tmp_path, "aiter::ck_moe_stage2", inter_states=bf16(tokens, K, N), out=bf16(tokens, D),
        w1=bf16(experts, 2 * N, D), w2=bf16(experts, D, N), topk=K, block_m=block,
        **aiter_tables(length, block),
    )  # fmt: skip
    rule.aiter_sorted(
        a.sorted_token_ids, a.sorted_expert_ids, a.num_valid_ids, tokens=tokens, top_k=K,
        block=block, experts=experts,
    )  # fmt: skip
    assert a.assumptions == ()


def test_a_longer_buffer_is_taken_as_padded_and_said_so(tmp_path):
    a = made(
        tmp_path, "aiter::ck_moe_stage1", hidden_states=bf16(M, D), out=bf16(M, K, N), **CK,
        **aiter_tables(AITER_LENGTH + 5),
    )  # fmt: skip
    assert a.assumptions == (
        "8 experts in blocks of 4 have 104 sorted ids, the other 5 were taken as padding",
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sorted_token_ids": i32(60), "sorted_expert_ids": i32(15)},
         "60 sorted ids do not fit 8 experts in blocks of 4 rows, which have 104"),
        ({"sorted_expert_ids": i32(25)},
         "104 sorted ids in blocks of 4 have 26 experts, recorded are 25"),
        ({"w2": bf16(6, D, N)},
         "weights are of different numbers of experts: w1 has 8, w2 has 6"),
    ],
)  # fmt: skip
def test_buffers_and_weights_that_disagree_are_refused_with_the_numbers(
    tmp_path, changed, sentence
):
    named = {"hidden_states": bf16(M, D), "out": bf16(M, K, N), **CK, **aiter_tables()} | changed
    assert sentence in refused(tmp_path, "aiter::ck_moe_stage1", **named)


def test_rows_of_a_second_stage_are_whole_tokens(tmp_path):
    named = AITER_SORTED["moe_cktile2stages_gemm2_ck"] | {"XQ": bf16(M * K + 1, N)}
    assert "75 rows are no whole tokens of 2 slots" in refused(
        tmp_path, "aiter::moe_cktile2stages_gemm2_ck", **named
    )


def test_a_first_stage_without_slots_anywhere_is_refused(tmp_path):
    named = AITER_SORTED["moe_stage1_g1u1"] | {"out": bf16(M * K, N)}
    detail = refused(tmp_path, "aiter::moe_stage1_g1u1", **named)
    assert "nothing tells the slots of a token" in detail


def test_blocks_that_nothing_explains_are_refused(tmp_path):
    named = FMOE | {"sorted_token_ids": i32(61), "sorted_expert_ids": i32(61)}
    assert "61 sorted ids do not fit 8 experts in blocks of any number of rows" in refused(
        tmp_path, "aiter::fmoe", **named
    )


VLLM_TABLES = {"sorted_token_ids": i32(VLLM_LENGTH), "expert_ids": i32(25)}
MARLIN = {
    "a": bf16(M, D), "b_q_weight": i32(E, 1, 8), "b_scales": bf16(E, 1, 8), "workspace": i32(64),
    "num_tokens_past_padded": i32(1), "topk_weights": f32(M, K), "moe_block_size": BLOCK,
    "top_k": K, "mul_topk_weights": False, "size_m": M, "size_n": 8, "size_k": D,
    "use_atomic_add": False, "use_fp32_reduce": True, "is_zp_float": False, **VLLM_TABLES,
}  # fmt: skip
VLLM_SORTED = {
    "_moe_C::moe_wna16_gemm": {
        "input": bf16(M, D), "output": bf16(M, K, 8), "b_qweight": u8(E, 8, D // 2),
        "b_scales": bf16(E, 8, 1), "num_tokens_post_pad": i32(1), "top_k": K,
        "BLOCK_SIZE_M": BLOCK, "BLOCK_SIZE_N": 8, "BLOCK_SIZE_K": 8, "bit": 4, **VLLM_TABLES,
    },
    "_moe_C::moe_wna16_marlin_gemm": MARLIN | {
        "b_type_id": 1, "is_full_k": True, "thread_k": -1, "thread_n": -1, "blocks_per_sm": -1,
        "g_idx_or_none": i32(E, D), "perm_or_none": i32(E, D),
    },
    "sgl_kernel::moe_wna16_marlin_gemm": MARLIN | {
        "is_ep": False, "b_q_type_id": 1, "is_k_full": True,
    },
    "_C::ggml_moe_a8": {
        "X": bf16(M, D), "W": u8(E, 8, D), "num_tokens_post_padded": i32(1), "type": 2, "row": 8,
        "top_k": K, "tokens": M, **VLLM_TABLES,
    },
}  # fmt: skip


@pytest.mark.parametrize("op", VLLM_SORTED)
def test_vllm_kernels_read_each_pair_once(tmp_path, op):
    a = made(tmp_path, op, **VLLM_SORTED[op])
    total = given(a, "num_tokens_post_pad", "num_tokens_post_padded", "num_tokens_past_padded")
    rule.vllm_sorted(
        a.sorted_token_ids, a.expert_ids, total, tokens=M, top_k=K, block=BLOCK, experts=E
    )
    if hasattr(a, "topk_weights") and a.topk_weights is not None:
        rule.topk_weights(a.topk_weights)
    if hasattr(a, "workspace"):
        assert not a.workspace.any()
    for order in a.perm_or_none if given(a, "perm_or_none") is not None else ():
        rule.permutation(order, D)
    rule.positive(*(t for n, t in vars(a).items() if "scale" in n and is_float(t)))
    assert a.recipe.endswith(f"; {int(total)} rows in blocks of {BLOCK} for {M * K} pairs")


def test_the_old_marlin_kernel_gets_ids_and_their_table(tmp_path):
    a = made(
        tmp_path, "_moe_C::marlin_gemm_moe", a=bf16(M, D), b_q_weights=i32(E, 1, 8),
        sorted_ids=i32(VLLM_LENGTH), topk_weights=f32(M, K), topk_ids=i32(M, K),
        b_scales=bf16(E, 1, 8), b_zeros=i32(E, 0), g_idx=i32(E, 0), perm=i32(E, 0),
        workspace=i32(64), b_q_type_id=1, size_m=M, size_n=8, size_k=D, is_k_full=True,
        num_experts=E, topk=K, moe_block_size=BLOCK, replicate_input=True, apply_weights=False,
    )  # fmt: skip
    rule.topk(a.topk_ids, E)
    flat = a.topk_ids.flatten().tolist()
    of_pair = [flat[pair] for pair in a.sorted_ids.tolist() if pair < PAIRS]
    assert of_pair == sorted(flat)


def test_a_layers_second_product_runs_over_the_pairs_of_its_first(tmp_path):
    named = VLLM_SORTED["_moe_C::moe_wna16_gemm"] | {"input": bf16(M * K, D), "top_k": 1}
    a = made(tmp_path, "_moe_C::moe_wna16_gemm", **named)
    rule.vllm_sorted(
        a.sorted_token_ids, a.expert_ids, a.num_tokens_post_pad, tokens=M, top_k=K, block=BLOCK,
        experts=E,
    )  # fmt: skip


def test_sglangs_buffers_have_room_for_one_expert_more(tmp_path):
    length = VLLM_LENGTH + BLOCK - 1
    named = VLLM_SORTED["sgl_kernel::moe_wna16_marlin_gemm"] | {
        "sorted_token_ids": i32(length), "expert_ids": i32(-(-length // BLOCK)),
    }  # fmt: skip
    a = made(tmp_path, "sgl_kernel::moe_wna16_marlin_gemm", **named)
    rule.vllm_sorted(
        a.sorted_token_ids, a.expert_ids, a.num_tokens_past_padded, tokens=M, top_k=K,
        block=BLOCK, experts=E,
    )  # fmt: skip
    assert a.assumptions == ()


@pytest.mark.parametrize("is_ep", [True, False])
def test_marlin_on_a_rank_of_two_skips_blocks_of_the_other_or_has_none(tmp_path, is_ep):
    length = M * K + 2 * E * (BLOCK - 1)
    named = VLLM_SORTED["sgl_kernel::moe_wna16_marlin_gemm"] | {
        "is_ep": is_ep, "sorted_token_ids": i32(length), "expert_ids": i32(-(-length // BLOCK)),
    }  # fmt: skip
    a = made(tmp_path, "sgl_kernel::moe_wna16_marlin_gemm", **named)
    pairs = rule.vllm_sorted(
        a.sorted_token_ids, a.expert_ids, a.num_tokens_past_padded, tokens=M, top_k=K,
        block=BLOCK, experts=E, all_pairs=is_ep,
    )  # fmt: skip
    valid = int(a.num_tokens_past_padded) // BLOCK
    assert (-1 in a.expert_ids[:valid].tolist()) == is_ep
    assert is_ep or pairs < M * K


FUSED = {
    "hidden_states": bf16(M, D), "w1": bf16(E, 2 * N, D), "w2": bf16(E, D, N),
    "topk_weights": f32(M, K), "topk_ids": i32(M, K),
}  # fmt: skip
AITER_FUSED = {n: v for n, v in FUSED.items() if n != "topk_weights"} | {"topk_weight": f32(M, K)}
SORTING = {
    "topk_ids": i32(M, K), "topk_weights": f32(M, K), "sorted_weights": f32(AITER_LENGTH),
    "moe_buf": bf16(M, D), "num_experts": E, "unit_size": BLOCK, **aiter_tables(),
}  # fmt: skip
CUTLASS = {
    "topk_ids": i32(M, K), "expert_offsets": i32(E + 1), "problem_sizes1": i32(E, 3),
    "problem_sizes2": i32(E, 3), "input_permutation": i32(PAIRS),
    "output_permutation": i32(PAIRS), "num_experts": E, "n": N, "k": D,
}  # fmt: skip
MX_SORT = {
    "topk_ids": i32(M, K), "topk_weight": f32(M, K), "reverse_sorted": i32(PAIRS),
    "sorted_weights": f32(AITER_LENGTH), "m_indices": i32(AITER_LENGTH),
    "bf16_zero_out": bf16(M, D), "bf16_zero_workspace": bf16(M, D), "M_logical": M, "NE": E,
    "TOPK": K, "D_HIDDEN": D, "D_INTER": N, "MB": BLOCK, "prologue": 0,
    **aiter_tables(valid="cumsum_tensor"),
}  # fmt: skip
PERMUTE = {
    "input": bf16(M, D), "topk_ids": i32(M, K), "token_expert_indices": i32(M, K), "n_expert": E,
    "n_local_expert": E, "topk": K, "permuted_input": bf16(PAIRS, D),
    "expert_first_token_offset": i64(E + 1), "inv_permuted_idx": i32(M, K),
    "permuted_idx": i32(PAIRS), "m_indices": i32(PAIRS),
}  # fmt: skip
ROUTED = {
    "_C::cpu_fused_moe": {
        "output": bf16(M, D), "input": bf16(M, D), "w13": bf16(E, 2 * N, D), "w2": bf16(E, D, N),
        "topk_weights": f32(M, K), "topk_id": i32(M, K), "skip_weighted": False,
    },
    "_C::ggml_moe_a8_vec": {
        "X": bf16(M, D), "W": u8(E, 8, D), "topk_ids": i32(M, K), "top_k": K, "type": 2, "row": 8,
        "tokens": M,
    },
    "_C::get_cutlass_moe_mm_data": CUTLASS | {"is_gated": True},
    "_moe_C::moe_permute": PERMUTE,
    "_moe_C::moe_permute_with_scratch": PERMUTE,
    "_moe_C::moe_sum": {
        "input": bf16(M, K, D), "output": bf16(M, D), "topk_ids": i32(M, K), "expert_map": i32(E),
    },
    "_moe_C::moe_lora_align_block_size": {
        "topk_ids": i32(M, K), "token_lora_mapping": i32(M), "num_experts": E,
        "block_size": BLOCK, "max_loras": 3, "max_num_tokens_padded": VLLM_LENGTH,
        "max_num_m_blocks": 25, "sorted_token_ids": i32(3 * VLLM_LENGTH), "experts_ids": i32(75),
        "num_tokens_post_pad": i32(3), "adapter_enabled": i32(4), "lora_ids": i32(4),
    },
    "vllm::inplace_fused_experts": FUSED | {"global_num_experts": E},
    "vllm::outplace_fused_experts": FUSED,
    "vllm::rocm_aiter_fused_moe": AITER_FUSED | {"num_local_tokens": i32(1)},
    "vllm::rocm_aiter_asm_moe_tkw1": FUSED | {"fc1_scale": f32(E, 2 * N)},
    "sglang::inplace_fused_experts": FUSED,
    "sglang::outplace_fused_experts": FUSED,
    "sgl_kernel::prepare_moe_input": CUTLASS,
    "sgl_kernel::get_cutlass_w4a8_moe_mm_data": CUTLASS,
    "aiter::fused_moe_": AITER_FUSED | {"num_local_tokens": i32(1)},
    "aiter::fhmoe_": AITER_FUSED,
    "aiter::mxfp4_moe_sort": MX_SORT,
    "aiter::mxfp4_moe_sort_quant": MX_SORT | {"a_input": bf16(M, D)},
    "aiter::moe_smoothquant_fwd": {
        "out": tensor(F8, M, K, D), "input": bf16(M, D), "x_scale": f32(E, D),
        "topk_ids": i32(M, K), "y_scale": f32(M, K),
    },
    "aiter::moe_sorting_fwd": SORTING | {"num_local_tokens": i32(1)},
    "aiter::moe_sorting_opus_fwd": SORTING,
}  # fmt: skip


@pytest.mark.parametrize("op", ROUTED)
def test_operators_that_sort_themselves_get_distinct_experts(tmp_path, op):
    a = made(tmp_path, op, **ROUTED[op])
    rule.topk(given(a, "topk_ids", "topk_id"), E)
    weights = given(a, "topk_weights", "topk_weight")
    if weights is not None:
        rule.topk_weights(weights)
    if given(a, "num_local_tokens") is not None:
        assert a.num_local_tokens.tolist() == [M]
    if hasattr(a, "token_expert_indices"):
        rule.permutation(a.token_expert_indices, PAIRS)
        assert a.token_expert_indices[1].tolist() == [1, M + 1]
    if given(a, "expert_map") is not None:
        rule.expert_map(a.expert_map, E)
    if hasattr(a, "lora_ids"):
        assert 0 <= a.token_lora_mapping.min() <= a.token_lora_mapping.max() < 3
        assert a.adapter_enabled.tolist() == [1, 1, 1, 1]
        assert a.lora_ids.tolist() == [0, 1, 2, -1]
    assert a.recipe.startswith(f"{M} tokens of {K} of {E} experts, uniform; 8 active, max/mean")


def test_a_sum_without_ids_adds_up_every_slot(tmp_path):
    a = made(tmp_path, "_moe_C::moe_sum", input=bf16(M, K, D), output=bf16(M, D))
    assert a.recipe is None


@pytest.mark.parametrize(
    ("op", "extra"),
    [("vllm::inplace_fused_experts", FUSED), ("_moe_C::moe_permute", PERMUTE)],
)
def test_a_map_of_all_ranks_names_the_experts_that_there_are_weights_of(tmp_path, op, extra):
    total = {"n_expert": 4 * E} if "n_expert" in extra else {"global_num_experts": 4 * E}
    a = made(tmp_path, op, **extra | total | {"expert_map": i32(4 * E)})
    rule.topk(a.topk_ids, 4 * E)
    assert a.topk_ids.max() >= E
    rule.expert_map(a.expert_map, E)
    assert f"of {4 * E} experts, {E} here" in a.recipe


def test_a_mask_of_all_ranks_has_as_many_ones_as_weights_and_a_fake_expert(tmp_path):
    a = made(tmp_path, "vllm::rocm_aiter_fused_moe", **AITER_FUSED, expert_mask=i32(4 * E + 1))
    rule.expert_mask(a.expert_mask, E, fake=True)
    rule.topk(a.topk_ids, 4 * E)
    alone = made(tmp_path, "aiter::fused_moe_", **AITER_FUSED, expert_mask=i32(E))
    rule.expert_mask(alone.expert_mask, E, fake=False)


def test_a_sorter_under_a_mask_says_that_it_takes_all_experts_to_be_here(tmp_path):
    a = made(tmp_path, "aiter::moe_sorting_fwd", **SORTING, local_expert_mask=i32(E + 1))
    rule.expert_mask(a.local_expert_mask, E, fake=True)
    assert a.assumptions == (
        "local_expert_mask: nothing tells how many experts are here, all 8 were taken",
    )


@pytest.mark.parametrize(
    ("op", "named", "sentence"),
    [
        ("vllm::inplace_fused_experts", FUSED | {"global_num_experts": 16},
         "w1 has 8 experts, the call names 16, and no map says which are here"),
        ("vllm::inplace_fused_experts",
         FUSED | {"global_num_experts": 16, "expert_map": i32(12)},
         "expert_map has 12 experts, the call names 16"),
        ("vllm::inplace_fused_experts", FUSED | {"expert_map": i32(4)},
         "8 experts are here, of 4 in all"),
        ("vllm::inplace_fused_experts", FUSED | {"topk_ids": i32(PAIRS)},
         "expected ids [tokens, top_k], recorded are (74,)"),
        ("_C::get_cutlass_moe_mm_data",
         CUTLASS | {"is_gated": True, "problem_sizes1": i32(9, 3)},
         "problem_sizes has 9 experts, num_experts is 8"),
        ("aiter::moe_sorting_fwd", SORTING | {"sorted_expert_ids": i32(3)},
         "104 sorted ids in blocks of 4 have 26 experts, recorded are 3"),
        ("aiter::moe_sorting_fwd",
         SORTING | {"sorted_token_ids": i32(12), "sorted_expert_ids": i32(3)},
         "entries more than its buffers hold"),
        ("_moe_C::moe_sum",
         {"input": bf16(M, K, D), "output": bf16(M, D), "topk_ids": i32(M, K)},
         "nothing tells the number of experts of _moe_C::moe_sum"),
    ],
)  # fmt: skip
def test_numbers_of_experts_that_disagree_are_refused(tmp_path, op, named, sentence):
    assert sentence in refused(tmp_path, op, **named)


ALIGN = {
    "topk_ids": i32(M, K), "num_experts": E, "block_size": BLOCK,
    "sorted_token_ids": i32(VLLM_LENGTH), "experts_ids": i32(25), "num_tokens_post_pad": i32(1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "extra"),
    [("_moe_C::moe_align_block_size", {}),
     ("_moe_C::sgl_moe_align_block_size", {}),
     ("_moe_C::moe_align_block_size", {"maybe_expert_map": i32(E)}),
     ("aiter::moe_align_block_size", {"token_nums": i32(25)})],
)  # fmt: skip
def test_aligning_gets_distinct_experts_and_a_buffer_of_padding(tmp_path, op, extra):
    a = made(tmp_path, op, **ALIGN, **extra)
    rule.topk(a.topk_ids, E)
    assert set(a.sorted_token_ids.tolist()) == {PAIRS}
    if "maybe_expert_map" in extra:
        rule.expert_map(a.maybe_expert_map, E)
        assert "nothing tells how many experts are here" in a.assumptions[0]
    padded = sum(-(-int((a.topk_ids == expert).sum()) // BLOCK) * BLOCK for expert in range(E))
    assert a.recipe.endswith(f"; {padded} rows in blocks of {BLOCK} for {PAIRS} pairs")


@pytest.mark.parametrize("form", ALIGN_FORMS)
def test_all_forms_of_sglangs_alignment(tmp_path, form):
    bins = E if form in ("6 arguments", "8 older arguments") else E + 1
    extra = {"cumsum_buffer": i32(bins + 1), "token_cnts_buffer": i32((bins + 1) * bins),
             "pad_sorted_token_ids": True}  # fmt: skip
    named = ALIGN | {"num_experts": bins}
    named |= {name: value for name, value in extra.items() if name in ALIGN_FORMS[form]}
    with registered(SGLANG_ALIGN.format(ALIGN_FORMS[form])):
        a = made(tmp_path, "sgl_kernel::moe_align_block_size", **named)
    assert len(a.all) == int(form[0])
    rule.topk(a.topk_ids, E)
    assert a.topk_ids.max() == E - 1


LOGITS = {
    "topk_weights": f32(M, K), "topk_indices": i32(M, K), "topk_ids": i32(M, K),
    "token_expert_indices": i32(M, K), "gating_output": bf16(M, E), "scores": f32(M, E),
    "input": f32(M, E), "bias": f32(E), "correction_bias": f32(E), "softmax_workspace": f32(M, E),
    "renormalize": True, "need_renorm": True, "routed_scaling_factor": 1.0, "n_group": 2,
    "topk_group": 1, "topk_grp": 1, "num_expert_group": 2, "topk": K, "scoring_func": 0,
    "num_fused_shared_experts": 0, "apply_routed_scaling_factor_on_output": False,
    "moe_softcapping": 0.0, "is_padding": mask(M), "input_ids": i64(M), "tid2eid": i32(50, K),
}  # fmt: skip
GATES = (
    *("_moe_C::topk_softmax", "_moe_C::topk_sigmoid", "_moe_C::topk_softplus_sqrt"),
    *("_moe_C::grouped_topk", "vllm::rocm_aiter_topk_softmax", "vllm::rocm_aiter_topk_sigmoid"),
    *("vllm::rocm_aiter_biased_grouped_topk", "vllm::rocm_aiter_grouped_topk"),
    *("sgl_kernel::topk_softmax", "sgl_kernel::topk_sigmoid", "sgl_kernel::moe_fused_gate"),
    *("aiter::_topk_softmax", "aiter::topk_softmax_asm", "aiter::topk_sigmoid"),
    *("aiter::biased_grouped_topk_hip", "aiter::grouped_topk", "aiter::_moe_fused_gate"),
    "aiter::topk_gating_fwd",
)


@pytest.mark.parametrize("op", GATES)
def test_gates_choose_by_random_logits(tmp_path, op):
    (schema,) = torch._C._jit_get_schemas_for_operator(op)
    strings = {p.name for p in schema.arguments if str(p.type) == "str"}
    there = {p.name for p in schema.arguments} - strings
    a = made(tmp_path, op, **{name: value for name, value in LOGITS.items() if name in there})
    logits = given(a, "gating_output", "scores", "input")
    assert logits.float().std() > 0.3
    assert logits.argmax(-1).unique().numel() == E
    assert a.recipe == f"logits of {M} tokens for {E} experts uniform in [-1, 1)"
    if hasattr(a, "is_padding"):
        assert not a.is_padding.any()
    if hasattr(a, "tid2eid"):
        rule.topk(a.tid2eid, E)
        assert 0 <= a.input_ids.min() <= a.input_ids.max() < 50


@pytest.mark.parametrize("op", ["silu_and_mul_bias", "swiglu_and_mul_bias", "gelu_and_mul_bias"])
def test_rows_take_the_bias_of_an_expert_that_there_is(tmp_path, op):
    a = made(tmp_path, f"aiter::{op}", out=bf16(PAIRS, N), input=bf16(PAIRS, 2 * N),
             expert_ids=i32(PAIRS), bias=f32(E, 2 * N))  # fmt: skip
    assert a.expert_ids.min() == 0
    assert a.expert_ids.max() == E - 1


GROUPS = {"problem_sizes": i32(E, 3), "expert_offsets": i32(E)}
STRIDES = {"a_strides": i64(E), "b_strides": i64(E), "c_strides": i64(E)}
FP4 = {"a": u8(PAIRS, D // 2), "b": u8(E, N, D // 2), "a_blockscale": u8(PAIRS + E * 127, 4)}
QUANT = {
    "output": u8(PAIRS, D // 2), "output_scale": i32(PAIRS + E * 127, 1), "input": bf16(PAIRS, D),
    "input_global_scale": f32(E), "input_offset_by_experts": i32(E + 1),
    "output_scale_offset_by_experts": i32(E + 1),
}  # fmt: skip
MX_QUANT = {n: v for n, v in QUANT.items() if n != "input_global_scale"} | {"n_experts": E}
GROUPED = {
    "_C::cutlass_moe_mm": {
        "out_tensors": bf16(PAIRS, N), "a_tensors": tensor(F8, PAIRS, D),
        "b_tensors": tensor(F8, E, D, N), "a_scales": f32(PAIRS, 1), "b_scales": f32(E, N),
        "per_act_token": True, "per_out_ch": True, **GROUPS, **STRIDES,
    },
    "_C::cutlass_fp4_group_mm": {
        "out": bf16(PAIRS, N), "b_blockscales": u8(E, N, 4), "alphas": f32(E),
        "sf_offsets": i32(E), **FP4, **GROUPS,
    },
    "_C::cutlass_mxfp4_group_mm": {
        "out": bf16(PAIRS, N), "b_blockscales": u8(E, N, 4), "sf_offsets": i32(E), **FP4, **GROUPS,
    },
    "_C::cutlass_w4a8_moe_mm": {
        "out_tensors": bf16(PAIRS, N), "a_tensors": tensor(F8, PAIRS, D), "b_tensors": i32(E, N, 2),
        "a_scales": f32(PAIRS, 1), "b_scales": f32(E, N), "b_group_scales": tensor(F8, E, 1, N),
        "b_group_size": 128, "group_scale_strides": i64(E, 2), **GROUPS, **STRIDES,
    },
    "_C::mxfp8_experts_quant": {
        "input": bf16(PAIRS, D), "quant_output": tensor(F8, PAIRS, D),
        "scale_factor": u8(PAIRS + E * 127, 4), "blockscale_offsets": i32(E), **GROUPS,
    },
    "_C::cutlass_mxfp8_grouped_mm": {
        "a": tensor(F8, PAIRS, D), "b": tensor(F8, E, D, N), "sfa": u8(PAIRS + E * 127, 4),
        "sfb": u8(E, N, 4), "out": bf16(PAIRS, N), "blockscale_offsets": i32(E), **GROUPS,
    },
    "_C::scaled_fp4_experts_quant": QUANT,
    "_C::silu_and_mul_scaled_fp4_experts_quant": QUANT | {"input": bf16(PAIRS, 2 * D)},
    "_C::mxfp4_experts_quant": MX_QUANT,
    "_C::silu_and_mul_mxfp4_experts_quant": MX_QUANT | {"input": bf16(PAIRS, 2 * D)},
    "sgl_kernel::scaled_fp4_experts_quant": QUANT,
    "sgl_kernel::cutlass_fp4_group_mm": {
        "output": bf16(PAIRS, N), "b_blockscale": u8(E, N, 4), "alphas": f32(E),
        "ab_strides": i64(E), "c_strides": i64(E), "sf_offsets": i32(E), **FP4, **GROUPS,
    },
    "sgl_kernel::cutlass_w4a8_moe_mm": {
        "d": bf16(PAIRS, N), "a": tensor(F8, PAIRS, D), "b": u8(E, N, D // 2), "a_scales": f32(1),
        "b_scales": bf16(E, 1, N), "a_strides": i64(E, 3), "b_strides": i64(E, 3),
        "d_strides": i64(E, 3), "s_strides": i64(E, 3), "chunk_size": 128, "topk": K, **GROUPS,
    },
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm": {
        "output": bf16(PAIRS, N), "a": tensor(F8, PAIRS, D), "b": tensor(F8, E, D, N),
        **{f"{n}_ptrs": i64(E) for n in ("a", "b", "out", "a_scales", "b_scales")},
        "scales_a": f32(PAIRS, 1), "scales_b": f32(E, 1, 1), "stride_a": i64(E),
        "stride_b": i64(E), "stride_c": i64(E), "layout_sfa": i32(E, 5), "layout_sfb": i32(E, 5),
        "workspace": u8(1024), **GROUPS,
    },
}  # fmt: skip


@pytest.mark.parametrize("op", GROUPED)
def test_grouped_products_get_offsets_and_sizes_of_one_routing(tmp_path, op):
    a = made(tmp_path, op, **GROUPED[op])
    counts = rule.group_starts(given(a, "expert_offsets", "input_offset_by_experts"), PAIRS, E)
    assert len(set(counts)) > 1, "a routing is not even"
    if hasattr(a, "problem_sizes"):
        n = 1 if op == "_C::mxfp8_experts_quant" else N
        rule.problem_sizes(a.problem_sizes, counts, n, D)
    scales = given(a, "sf_offsets", "blockscale_offsets", "output_scale_offset_by_experts")
    if scales is not None:
        rule.scale_starts(scales, counts)
    for name, strides in vars(a).items():
        if "stride" in name:
            rule.constant(strides, D if name[0] == "a" or name[:2] == "b_" or name in (
                "stride_a", "stride_b") else N)  # fmt: skip
    rule.positive(*(t for n, t in vars(a).items() if "scale" in n and is_float(t)))
    assert a.recipe.startswith(f"{PAIRS} tokens of 1 of {E} experts")


def test_problem_sizes_from_offsets_say_how_many_rows_were_taken(tmp_path):
    a = made(
        tmp_path, "_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets",
        expert_first_token_offset=i64(E + 1), problem_sizes1=i32(E, 3), problem_sizes2=i32(E, 3),
        n=N, k=D, swap_ab=False,
    )  # fmt: skip
    rule.group_starts(a.expert_first_token_offset, 512, E)
    assert a.assumptions == ("nothing tells the rows of all experts, 512 were taken",)


def test_scales_without_room_are_refused_with_the_numbers(tmp_path):
    named = GROUPED["_C::cutlass_fp4_group_mm"] | {"a_blockscale": u8(PAIRS, 4)}
    detail = refused(tmp_path, "_C::cutlass_fp4_group_mm", **named)
    assert "a_blockscale has 74 rows, 8 experts in blocks of 128 need 1024" in detail


def test_groups_that_disagree_are_refused_with_the_numbers(tmp_path):
    named = GROUPED["_C::cutlass_moe_mm"] | {"problem_sizes": i32(E + 3, 3)}
    detail = refused(tmp_path, "_C::cutlass_moe_mm", **named)
    assert "b_tensors has 8, problem_sizes has 11" in detail


BATCHED = {
    "_moe_C::batched_moe_align_block_size": {
        "max_tokens_per_batch": 12, "block_size": BLOCK, "expert_num_tokens": i32(E),
        "sorted_token_ids": i32(96), "experts_ids": i32(24), "num_tokens_post_pad": i32(1),
    },
    "_C::get_cutlass_batched_moe_mm_data": {
        "expert_offsets": i32(E), "problem_sizes1": i32(E, 3), "problem_sizes2": i32(E, 3),
        "expert_num_tokens": i32(E), "num_local_experts": E, "padded_m": 12, "n": N, "k": D,
    },
    "_C::persistent_masked_m_silu_mul_quant": {
        "input": bf16(E, 12, 2 * N), "counts": i32(E), "y_q": tensor(F8, E, 12, N),
        "y_s": f32(E, 12, 1), "use_ue8m0": False,
    },
    "sgl_kernel::silu_and_mul_scaled_fp4_experts_quant": {
        "output": u8(E * 12, D // 2), "output_scale": i32(E, 128, 1), "input": bf16(E, 12, 2 * D),
        "input_global_scale": f32(E), "mask": i32(E), "use_silu_and_mul": True,
    },
}  # fmt: skip


BATCHED["_C::get_cutlass_pplx_moe_mm_data"] = BATCHED["_C::get_cutlass_batched_moe_mm_data"]


@pytest.mark.parametrize("op", BATCHED)
def test_batches_of_experts_are_partly_in_use(tmp_path, op):
    a = made(tmp_path, op, **BATCHED[op])
    rule.token_counts(given(a, "expert_num_tokens", "counts", "mask"), 12)
    assert "half of 8 x 12 were taken" in a.assumptions[0]
    skewed = made(tmp_path, op, {"moe.distribution": "one_hot"}, **BATCHED[op])
    rule.token_counts(given(skewed, "expert_num_tokens", "counts", "mask"), 12)
    assert skewed.recipe == "12 rows of 8 x 12 in use, one_hot"


def test_a_batched_table_that_its_buffer_does_not_hold_is_refused(tmp_path):
    named = BATCHED["_moe_C::batched_moe_align_block_size"] | {"sorted_token_ids": i32(64)}
    detail = refused(tmp_path, "_moe_C::batched_moe_align_block_size", **named)
    assert "8 experts of 12 rows in blocks of 4 have 96 sorted ids, recorded are 64" in detail


def test_counts_of_other_experts_than_the_input_has_are_refused(tmp_path):
    named = BATCHED["_C::persistent_masked_m_silu_mul_quant"] | {"counts": i32(9)}
    detail = refused(tmp_path, "_C::persistent_masked_m_silu_mul_quant", **named)
    assert "input has 8 experts, there are counts of 9" in detail


@pytest.mark.parametrize("offsets", [i64(E + 1), None], ids=["offsets", "none"])
def test_unpermuting_takes_every_pair_from_a_row_of_its_own(tmp_path, offsets):
    a = made(
        tmp_path, "_moe_C::moe_unpermute", permuted_hidden_states=bf16(PAIRS, D),
        topk_weights=f32(M, K), inv_permuted_idx=i32(M, K), expert_first_token_offset=offsets,
        topk=K, hidden_states=bf16(M, D),
    )  # fmt: skip
    rule.permutation(a.inv_permuted_idx, PAIRS)
    rule.topk_weights(a.topk_weights)
    if offsets is not None:
        rule.group_starts(a.expert_first_token_offset, PAIRS, E)
    assert bool(a.assumptions) == (offsets is None)


def test_more_pairs_than_permuted_rows_are_refused(tmp_path):
    detail = refused(
        tmp_path, "_moe_C::moe_unpermute", permuted_hidden_states=bf16(60, D),
        topk_weights=f32(M, K), inv_permuted_idx=i32(M, K), expert_first_token_offset=i64(E + 1),
        topk=K, hidden_states=bf16(M, D),
    )  # fmt: skip
    assert "74 pairs of 2 a token do not fit 60 rows" in detail


@pytest.mark.parametrize(
    ("op", "source", "target"),
    [("_moe_C::shuffle_rows", "input_tensor", "output_tensor"),
     ("sgl_kernel::shuffle_rows", "input", "output")],
)  # fmt: skip
def test_shuffled_rows_come_from_every_row_equally_often(tmp_path, op, source, target):
    a = made(tmp_path, op, dst2src_map=i32(PAIRS),
             **{source: bf16(M, D), target: bf16(PAIRS, D)})  # fmt: skip
    assert torch.bincount(a.dst2src_map, minlength=M).tolist() == [K] * M


@pytest.mark.parametrize(
    ("op", "named", "order"),
    [
        ("sgl_kernel::apply_shuffle_mul_sum",
         {"input": bf16(PAIRS, D), "output": bf16(M, D), "permutation": i32(PAIRS),
          "factors": f32(M, K)}, "permutation"),
        ("aiter::mxfp4_moe_scatter_reduce",
         {"flat_out": bf16(AITER_LENGTH, D), "reverse_sorted": i32(PAIRS),
          "sorted_weights": f32(AITER_LENGTH), "out": bf16(M, D), "NE": E, "TOPK": K,
          "D_HIDDEN": D, "MB": BLOCK}, "reverse_sorted"),
        ("aiter::mxfp4_moe_scatter_reduce_q",
         {"flat_out_q": u8(AITER_LENGTH, D // 2), "flat_out_scale": u8(AITER_LENGTH, 1),
          "reverse_sorted": i32(PAIRS), "sorted_weights": f32(AITER_LENGTH), "out": bf16(M, D),
          "NE": E, "TOPK": K, "D_HIDDEN": D, "MB": BLOCK}, "reverse_sorted"),
    ],
)  # fmt: skip
def test_reductions_read_a_row_of_its_own_for_every_pair(tmp_path, op, named, order):
    a = made(tmp_path, op, **named)
    rows = AITER_LENGTH if "sorted_weights" in named else PAIRS
    rule.permutation(getattr(a, order), rows)
    rule.positive(given(a, "factors", "sorted_weights"))
    assert "do not fit 3 rows" in refused(tmp_path, op, **named | {next(iter(named)): bf16(3, D)})


@pytest.mark.parametrize(
    ("distribution", "extra", "told", "active"),
    [
        ("zipf", {"moe.s": "1.0"}, "zipf 1.0", None),
        ("power_law", {"moe.alpha": "1.2"}, "power_law 1.2", None),
        ("hot", {"moe.hot": "3"}, "hot 3", 3),
        ("balanced", {}, "balanced", 8),
        ("one_hot", {}, "one_hot", 2),
    ],
)
def test_the_distribution_shapes_the_table_and_is_told(tmp_path, distribution, extra, told, active):
    a = made(
        tmp_path, "aiter::ck_moe_stage1", {"moe.distribution": distribution, **extra},
        **AITER_SORTED["ck_moe_stage1"],
    )  # fmt: skip
    rule.aiter_sorted(
        a.sorted_token_ids, a.sorted_expert_ids, a.num_valid_ids, tokens=M, top_k=K, block=BLOCK,
        experts=E,
    )  # fmt: skip
    assert f" experts, {told}; " in a.recipe
    used = a.sorted_expert_ids[: int(a.num_valid_ids[0]) // BLOCK].unique().numel()
    assert used == (active or used)
    assert f"; {used} active," in a.recipe


def test_loads_of_a_file_shape_the_routing(tmp_path):
    loads = tmp_path / "loads.json"
    loads.write_text("[37, 37, 0, 0, 0, 0, 0, 0]")
    a = made(
        tmp_path, "vllm::inplace_fused_experts",
        {"moe.distribution": "histogram", "moe.histogram": str(loads)}, **FUSED,
    )  # fmt: skip
    assert sorted(a.topk_ids.unique().tolist()) == [0, 1]


@pytest.mark.parametrize("ragged", [False, True])
def test_torchs_groups_end_where_a_routing_ends_them(tmp_path, ragged):
    first, second = (bf16(16, 64), bf16(64, 8)) if ragged else (bf16(64, 16), bf16(E, 16, 8))
    a = made(tmp_path, "aten::_grouped_mm", {"moe.distribution": "one_hot"},
             self=first, mat2=second, offs=i32(E))  # fmt: skip
    rule.group_ends(a.offs, 64, unit=8)
    assert a.offs.unique().numel() <= 2, "one group has all rows"
    assert a.recipe == "8 groups of 0 to 64 of 64 rows, one_hot"
    torch._grouped_mm(a.self, a.mat2, a.offs)


def test_the_seed_of_the_run_chooses_the_routing(tmp_path):
    resolved = resolved_of(tmp_path, "vllm::inplace_fused_experts", **FUSED)
    ids = [
        make_inputs(resolved, device="cpu", seed=seed, memory_budget=1 << 30).arguments[4].tolist()
        for seed in (1, 1, 2)
    ]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]


# Tables that a kernel reads, by the names that its libraries give them.
TABLES = {
    "sorted_token_ids", "sorted_ids", "sorted_expert_ids", "expert_ids", "num_valid_ids",
    "max_token_ids", "cumsum_tensor", "num_tokens_post_pad", "num_tokens_post_padded",
    "num_tokens_past_padded", "expert_offsets", "problem_sizes", "input_offset_by_experts",
    "sf_offsets", "blockscale_offsets", "output_scale_offset_by_experts",
}  # fmt: skip
TABLED = {
    **{f"aiter::{op}": (named, TABLES) for op, named in AITER_SORTED.items()},
    **{op: (named, TABLES) for op, named in (VLLM_SORTED | GROUPED).items()},
    **{op: (named, {"topk_ids", "topk_id"}) for op, named in ROUTED.items()},
    **{op: (named, {"expert_num_tokens", "counts", "mask"}) for op, named in BATCHED.items()},
}
del TABLED["_moe_C::moe_sum"]  # Its ids are optional.


@pytest.mark.parametrize("op", TABLED)
def test_r7_a_table_under_another_name_fails_with_the_names_there(tmp_path, op):
    named, tables = TABLED[op]
    resolved = resolved_of(tmp_path, op, **named)
    assert named.keys() & tables
    for name in named.keys() & tables:
        arguments = tuple(
            replace(a, name="unheard_of") if a.name == name else a for a in resolved.arguments
        )
        changed = replace(resolved, arguments=arguments)
        made = make_inputs(changed, device="cpu", seed=0, memory_budget=1 << 30)
        assert getattr(made, "reason", None) == "recipe_failed", name
        assert f"{op} has no argument" in made.detail, name
        assert "unheard_of" in made.detail.partition("; it has ")[2], name
