"""Recipes of packed linear layers and of the indexer's top-k, from recorded form to rules.

Schemas are those of vLLM's torch_bindings.cpp, sgl-kernel's common_extension.cc and aiter/ops.
"""

from __future__ import annotations

import pytest
import rules
import torch
from made_calls import f32, i32, tensor
from moe_schemas import inputs_of, registered

from opreplay.trace.call import Skipped

K, N, GROUP = 256, 128, 64
ROWS, KEYS = 5, 40
SCHEMAS = [
    "_C::permute_cols(Tensor A, Tensor perm) -> Tensor",
    "_C::gptq_shuffle(Tensor! q_weight, Tensor q_perm, int bit) -> ()",
    "_C::gptq_marlin_repack(Tensor b_q_weight, Tensor perm, SymInt size_k, SymInt size_n, "
    "int num_bits, bool is_a_8bit) -> Tensor",
    "_C::gptq_gemm(Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros, Tensor b_gptq_scales, "
    "Tensor b_g_idx, bool use_exllama, bool use_v2_format, int bit) -> Tensor",
    "_C::marlin_gemm(Tensor a, Tensor? c_or_none, Tensor b_q_weight, Tensor? b_bias_or_none, "
    "Tensor b_scales, Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, "
    "Tensor? g_idx_or_none, Tensor? perm_or_none, Tensor workspace, int b_type_id, "
    "SymInt size_m, SymInt size_n, SymInt size_k, bool is_k_full, bool use_atomic_add, "
    "bool use_fp32_reduce, bool is_zp_float) -> Tensor",
    "sgl_kernel::gptq_gemm(Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros, "
    "Tensor b_gptq_scales, Tensor b_g_idx, bool use_shuffle, int bit) -> Tensor",
    "_C::top_k_per_row_prefill(Tensor logits, Tensor rowStarts, Tensor rowEnds, Tensor! indices, "
    "int numRows, int stride0, int stride1, int topK) -> ()",
    "_C::top_k_per_row_decode(Tensor logits, int next_n, Tensor seq_lens, Tensor! indices, "
    "int numRows, int stride0, int stride1, int topK) -> ()",
    "_C::persistent_topk(Tensor logits, Tensor lengths, Tensor! output, Tensor workspace, int k, "
    "int max_seq_len) -> ()",
    "_C::gptq_marlin_gemm(Tensor a, Tensor groups) -> Tensor",
]
WEIGHT = i32(K // 8, N)
TOP_K = {"logits": f32(ROWS, KEYS), "indices": i32(ROWS, 8), "numRows": ROWS, "stride0": KEYS,
         "stride1": 1, "topK": 8}  # fmt: skip
GPTQ = {"a": tensor(torch.float16, 7, K), "b_q_weight": WEIGHT,
        "b_gptq_qzeros": i32(K // GROUP, N // 8),
        "b_gptq_scales": tensor(torch.float16, K // GROUP, N), "bit": 4}  # fmt: skip
MARLIN = {"a": tensor(torch.float16, 7, K), "b_q_weight": i32(K // 16, N * 2),
          "b_scales": tensor(torch.float16, K // GROUP, N), "workspace": i32(528),
          "b_type_id": 1, "size_m": 7, "size_n": N, "size_k": K, "is_k_full": True,
          "use_atomic_add": False, "use_fp32_reduce": True, "is_zp_float": False}  # fmt: skip
IN_GROUPS = [0] * 64 + [1] * 64 + [2] * 64 + [3] * 64


@pytest.fixture(scope="module", autouse=True)
def libraries():
    with registered(*SCHEMAS):
        yield


def is_permutation(order):
    return sorted(order.tolist()) == list(range(K)) != order.tolist()


@pytest.mark.parametrize(
    ("operator", "order", "named"),
    [
        ("_C::permute_cols", "perm", {"A": tensor(torch.float16, 7, K), "perm": i32(K)}),
        ("_C::gptq_shuffle", "q_perm", {"q_weight": WEIGHT, "q_perm": i32(K), "bit": 4}),
        ("_C::gptq_marlin_repack", "perm",
         {"b_q_weight": WEIGHT, "perm": i32(K), "size_k": K, "size_n": N, "num_bits": 4,
          "is_a_8bit": False}),
        ("_C::gptq_gemm", "b_g_idx",
         {**GPTQ, "b_g_idx": i32(K), "use_exllama": True, "use_v2_format": False}),
        ("sgl_kernel::gptq_gemm", "b_g_idx", {**GPTQ, "b_g_idx": i32(K), "use_shuffle": True}),
        ("_C::marlin_gemm", "perm_or_none",
         {**MARLIN, "g_idx_or_none": i32(K), "perm_or_none": i32(K)}),
    ],
)  # fmt: skip
def test_an_order_of_rows_is_a_permutation(tmp_path, operator, order, named):
    made = inputs_of(tmp_path, operator, **named)
    assert is_permutation(made[order])
    assert f"{K} rows permuted" in made["recipe"]
    assert made["assumptions"] == ()


@pytest.mark.parametrize(
    ("operator", "groups", "named"),
    [
        ("_C::gptq_gemm", "b_g_idx",
         {**GPTQ, "b_g_idx": i32(K), "use_exllama": False, "use_v2_format": False}),
        ("_C::marlin_gemm", "g_idx_or_none",
         {**MARLIN, "g_idx_or_none": i32(K), "perm_or_none": i32(K)}),
    ],
)  # fmt: skip
def test_groups_of_rows_are_neighbours_and_each_has_a_scale(tmp_path, operator, groups, named):
    assert inputs_of(tmp_path, operator, **named)[groups].tolist() == IN_GROUPS


def test_locks_are_zero_weights_are_not_and_empty_orders_stay(tmp_path):
    made = inputs_of(
        tmp_path, "_C::marlin_gemm", **MARLIN, g_idx_or_none=i32(0), perm_or_none=i32(0)
    )
    assert not made["workspace"].any()
    assert len(made["b_q_weight"].unique()) > 1000
    assert (made["b_scales"] > 0).all()
    assert made["recipe"] == "rows stay in their order, groups are neighbours"
    assert made["assumptions"] == ()


def test_rows_of_a_prompt_see_one_key_more_each(tmp_path):
    made = inputs_of(
        tmp_path, "_C::top_k_per_row_prefill", **TOP_K, rowStarts=i32(ROWS), rowEnds=i32(ROWS)
    )
    assert made["rowStarts"].tolist() == [0] * ROWS
    assert made["rowEnds"].tolist() == [36, 37, 38, 39, 40]
    assert len(made["assumptions"]) == 1


@pytest.mark.parametrize(
    ("operator", "lengths", "named"),
    [
        ("_C::top_k_per_row_decode", "seq_lens", {**TOP_K, "next_n": 1, "seq_lens": i32(ROWS)}),
        ("_C::persistent_topk", "lengths",
         {"logits": f32(ROWS, KEYS), "lengths": i32(ROWS), "output": i32(ROWS, 8),
          "workspace": tensor(torch.uint8, 64), "k": 8, "max_seq_len": KEYS}),
    ],
)  # fmt: skip
def test_lengths_of_rows_are_within_the_keys(tmp_path, operator, lengths, named):
    made = inputs_of(tmp_path, operator, **named)
    rules.key_lengths(made[lengths].tolist(), [1] * ROWS, longest=KEYS)
    assert len(set(made[lengths].tolist())) > 1
    if "workspace" in made:
        assert not made["workspace"].any()


def test_r7_an_unknown_name_of_the_groups_fails_with_the_names_that_are_there(tmp_path):
    failed = inputs_of(tmp_path, "_C::gptq_marlin_gemm", a=f32(7, K), groups=i32(K))
    assert isinstance(failed, Skipped)
    assert failed.reason == "recipe_failed"
    assert failed.detail.endswith("it has a, groups")
