"""A slow two-stage MoE reads the tables that recipes make; its result equals a dense MoE."""

from types import SimpleNamespace

import pytest
import torch
from made_calls import f32, i32
from moe_schemas import AITER, inputs_of, registered

M, K, E, D, N, BLOCK = 29, 3, 8, 12, 10, 4
LENGTH = M * K + E * BLOCK - K
TABLES = {
    "sorted_token_ids": i32(LENGTH), "sorted_expert_ids": i32(-(-LENGTH // BLOCK)),
    "num_valid_ids": i32(2), "sorted_weights": f32(LENGTH),
}  # fmt: skip
SIZES = {"w1": f32(E, 2 * N, D), "w2": f32(E, D, N), "topk": K}


def pairs(sorted_token_ids, sorted_expert_ids, num_valid_ids, block):
    """The rows that a kernel of aiter works on: place, token, slot, expert."""
    total, tokens = num_valid_ids.tolist()
    for place, packed in enumerate(sorted_token_ids.tolist()[:total]):
        token, slot = packed & 0xFFFFFF, packed >> 24
        if token < tokens:
            yield place, token, slot, int(sorted_expert_ids[place // block])


def activated(row, weight):
    gate, up = (weight @ row).chunk(2)
    return torch.nn.functional.silu(gate) * up


def stage1(hidden, w1, w2, ids, experts, valid, out, topk, name, w_scale, a_scale, block, *rest):
    for _, token, slot, expert in pairs(ids, experts, valid, block):
        out[token, slot] = activated(hidden[token], w1[expert])


def stage2(
    inter, w1, w2, ids, experts, valid, out, topk, name, w_scale, a_scale, block, weights, *rest
):
    for place, token, slot, expert in pairs(ids, experts, valid, block):
        out[token] += weights[place] * (w2[expert] @ inter[token, slot])


def dense(hidden, w1, w2, topk_ids, topk_weights):
    """Every token through each of its experts, one after the other."""
    out = torch.zeros(M, D)
    for token in range(M):
        for expert, weight in zip(topk_ids[token].tolist(), topk_weights[token], strict=True):
            out[token] += weight * (w2[expert] @ activated(hidden[token], w1[expert]))
    return out


@pytest.fixture(scope="module", autouse=True)
def libraries():
    kernels = {"aiter::ck_moe_stage1": stage1, "aiter::ck_moe_stage2": stage2}
    with registered(*AITER, kernels=kernels):
        yield


@pytest.fixture
def calls(tmp_path):
    """Both stages and the fused call, each with the inputs that its own recipe made."""
    named = {
        "ck_moe_stage1": {"hidden_states": f32(M, D), "out": f32(M, K, N), "block_m": BLOCK,
                          **SIZES, **TABLES},
        "ck_moe_stage2": {"inter_states": f32(M, K, N), "out": f32(M, D), "block_m": BLOCK,
                          **SIZES, **TABLES},
        "fused_moe_": {"hidden_states": f32(M, D), "w1": SIZES["w1"], "w2": SIZES["w2"],
                       "topk_weight": f32(M, K), "topk_ids": i32(M, K)},
    }  # fmt: skip
    return SimpleNamespace(**{
        op.removeprefix("ck_moe_"): inputs_of(tmp_path, f"aiter::{op}", **arguments)
        for op, arguments in named.items()
    })  # fmt: skip


def result(calls):
    """Runs the stages as operators, one on the other's output, on the same weights."""
    first, second = calls.stage1, calls.stage2
    first["out"].fill_(float("nan"))
    torch.ops.aiter.ck_moe_stage1(*first["all"])
    second["inter_states"].copy_(first["out"])
    second["w2"].copy_(first["w2"])
    second["out"].zero_()
    torch.ops.aiter.ck_moe_stage2(*second["all"])
    return second["out"]


def expected(calls):
    first, fused = calls.stage1, calls.fused_moe_
    return dense(
        first["hidden_states"], first["w1"], first["w2"], fused["topk_ids"], fused["topk_weight"]
    )


def test_two_stages_on_the_tables_of_recipes_equal_a_dense_moe(calls):
    torch.testing.assert_close(result(calls), expected(calls))


def without_slots(tables):
    tables["sorted_token_ids"] &= 0xFFFFFF


def with_a_wrong_expert(tables):
    tables["sorted_expert_ids"][0] = (tables["sorted_expert_ids"][0] + 1) % E


def with_an_expert_twice(tables):
    """Puts another slot of the first token where its first expert works on another token."""
    ids = tables["sorted_token_ids"]
    token = int(ids[0]) & 0xFFFFFF
    other = next(p for p in range(BLOCK, LENGTH) if int(ids[p]) & 0xFFFFFF == token)
    ids[[1, other]] = ids[[other, 1]]


def with_a_lost_pair(tables):
    tables["sorted_token_ids"][0] = K << 24 | M


@pytest.mark.parametrize(
    "spoil", [without_slots, with_a_wrong_expert, with_an_expert_twice, with_a_lost_pair]
)
def test_a_spoilt_table_gives_another_result(calls, spoil):
    spoil(calls.stage1)
    spoil(calls.stage2)
    wrong = (result(calls) - expected(calls)).abs()
    assert not wrong.max() < 1e-3
