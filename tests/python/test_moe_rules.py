"""The rules for MoE arguments accept the layouts' worked examples and refuse spoilt ones."""

import moe_rules as rule
import pytest
import torch


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


P = 0x2000004
IDS = [0, 4, 7, 8, 3, 8, 8, 8, 1, 2, 5, 6, 8, 8, 8, 8, 8]
PACKED = [0, 2, 0x1000003, P, 0x1000001, P, P, P, 0x1000000, 1, 0x1000002, 3, P, P, P, P, P, P]
SHAPE = {"tokens": 4, "top_k": 2, "block": 4, "experts": 3}


def changed(values, place, value):
    return [*values[:place], value, *values[place + 1 :]]


def vllm(ids=IDS, experts=(0, 1, 2, -1, -1), total=12, **shape):
    return rule.vllm_sorted(ints(*ids), ints(*experts), ints(total), **{**SHAPE, **shape})


def aiter(ids=PACKED, experts=(0, 1, 2, 0, 0), valid=(12, 4), **shape):
    return rule.aiter_sorted(ints(*ids), ints(*experts), ints(*valid), **{**SHAPE, **shape})


def test_the_worked_examples_of_both_layouts_are_accepted():
    assert vllm() == 8
    assert vllm(experts=(-1, 0, 1, -1, -1)) == 8
    local = [3, 8, 8, 8, 1, 2, 5, 6, *[8] * 9]
    assert vllm(local, (0, 1, -1, -1, -1), 8, all_pairs=False) == 5
    assert aiter() == 8
    assert aiter(experts=(0, 1, 2, 0, 0), valid=(12,)) == 8


@pytest.mark.parametrize(
    "spoilt",
    [
        {"ids": changed(IDS, 1, 0)},
        {"ids": changed(IDS, 4, 2)},
        {"ids": changed(IDS, 3, 9)},
        {"ids": [4, 0, *IDS[2:]]},
        {"experts": (0, 0, 2, -1, -1), "ids": changed(changed(IDS, 4, 1), 8, 3)},
        {"experts": (0, 1, 3, -1, -1)},
        {"experts": (1, 0, 2, -1, -1)},
        {"experts": (0, 1, 2, -1)},
        {"experts": (0, 1, 2, 2, -1)},
        {"total": 8},
        {"total": 11},
        {"total": 20},
    ],
)
def test_a_spoilt_table_of_vllm_is_refused(spoilt):
    with pytest.raises(AssertionError):
        vllm(**spoilt)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"ids": [i & 0xFFFFFF for i in PACKED]},
        {"ids": changed(PACKED, 0, P)},
        {"ids": changed(PACKED, 3, 8)},
        {"ids": changed(PACKED, 4, 0x3000001)},
        {"experts": (0, 0, 2, 0, 0), "ids": changed(changed(PACKED, 4, 0x1000000), 8, 0x1000001)},
        {"experts": (0, 1, 3, 0, 0)},
        {"experts": (0, 2, 1, 0, 0)},
        {"experts": (0, 1, 2, 0)},
        {"valid": (12, 12)},
        {"valid": (10, 4)},
        {"valid": (0, 4)},
    ],
)
def test_a_spoilt_table_of_aiter_is_refused(spoilt):
    with pytest.raises(AssertionError):
        aiter(**spoilt)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (lambda v: rule.topk(v, 4), ints([0, 3], [2, 1]), ints([0, 3], [2, 2])),
        (lambda v: rule.topk(v, 4), ints([0, 3], [2, 1]), ints([0, 4], [2, 1])),
        (rule.topk_weights, torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.6]])),
        (rule.topk_weights, torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])),
        (lambda v: rule.expert_map(v, 2), ints(-1, 0, 1), ints(0, 0, -1)),
        (lambda v: rule.expert_mask(v, 2, fake=True), ints(1, 1, 0), ints(0, 1, 1)),
        (lambda v: rule.group_starts(v, 9, 3), ints(0, 4, 4, 9), ints(0, 5, 4, 9)),
        (lambda v: rule.group_starts(v, 9, 3), ints(0, 4, 4), ints(1, 4, 4)),
        (lambda v: rule.group_ends(v, 16, unit=8), ints(0, 8, 16), ints(0, 8, 24)),
        (lambda v: rule.group_ends(v, 16, unit=8), ints(0, 8, 16), ints(0, 4, 16)),
        (lambda v: rule.problem_sizes(v, [2, 1], 3, 4), ints([2, 3, 4], [1, 3, 4]),
         ints([2, 4, 3], [1, 4, 3])),
        (lambda v: rule.scale_starts(v, [1, 129, 0]), ints(0, 128, 384, 384),
         ints(0, 1, 130, 130)),
        (lambda v: rule.token_counts(v, 4), ints(0, 4), ints(0, 5)),
        (lambda v: rule.token_counts(v, 4), ints(0, 4), ints(0, 0)),
        (lambda v: rule.permutation(v, 3), ints(2, 0, 1), ints(2, 0, 2)),
        (lambda v: rule.constant(v, 3), ints(3, 3, dtype=torch.int64), ints(3, 3)),
        (rule.positive, torch.ones(2), torch.tensor([1.0, 0.0])),
    ],
)  # fmt: skip
def test_each_rule_accepts_what_holds_and_refuses_what_does_not(check, good, bad):
    check(good)
    with pytest.raises(AssertionError):
        check(bad)
