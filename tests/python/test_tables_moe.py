from __future__ import annotations

import json
import math

import moe_reference as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay import tables

ROWS = [[0, 2], [2, 1], [0, 2], [2, 0]]
WEIGHTS = [[0.6, 0.4], [0.7, 0.3], [0.5, 0.5], [0.8, 0.2]]


def example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(ROWS, dtype=torch.int32), torch.tensor(WEIGHTS)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def counts_of(topk_ids: torch.Tensor, experts: int) -> torch.Tensor:
    return torch.bincount(topk_ids.flatten(), minlength=experts)


def assert_rows_distinct(topk_ids: torch.Tensor) -> None:
    ordered = topk_ids.sort(-1).values
    assert (ordered[..., 1:] > ordered[..., :-1]).all()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# The worked examples of the specification, number by number.


def test_align_gives_the_worked_example_of_vllm():
    table = tables.moe_align_block_size(example()[0], 3, 4)
    assert table.sorted_token_ids.tolist() == [0, 4, 7, 8, 3, 8, 8, 8, 1, 2, 5, 6, 8, 8, 8, 8, 8]
    assert table.expert_ids.tolist() == [0, 1, 2, -1, -1]
    assert table.num_tokens_post_padded.tolist() == [12]


def test_align_drops_pairs_of_other_ranks_and_numbers_blocks_locally():
    table = tables.moe_align_block_size(example()[0], 3, 4, expert_map=ints(-1, 0, 1))
    assert table.sorted_token_ids.tolist() == [3, 8, 8, 8, 1, 2, 5, 6] + [8] * 9
    assert table.expert_ids.tolist() == [0, 1, -1, -1, -1]
    assert table.num_tokens_post_padded.tolist() == [8]


@pytest.mark.parametrize("unused_expert", [-1, 0])
def test_align_marks_blocks_of_other_ranks(unused_expert):
    table = tables.moe_align_block_size(
        example()[0], 3, 4, expert_map=ints(-1, 0, 1), foreign="mark", unused_expert=unused_expert
    )
    assert table.sorted_token_ids.tolist() == [0, 4, 7, 8, 3, 8, 8, 8, 1, 2, 5, 6, 8, 8, 8, 8, 8]
    assert table.expert_ids.tolist() == [-1, 0, 1, -1, -1]
    assert table.num_tokens_post_padded.tolist() == [12]


def test_align_gives_the_example_of_the_vllm_documentation():
    ids = torch.tensor([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]], dtype=torch.int32)
    table = tables.moe_align_block_size(ids, 5, 4)
    expected = [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    assert table.sorted_token_ids[:16].tolist() == expected
    assert table.num_tokens_post_padded.tolist() == [16]


def test_align_of_older_engines_calls_unused_blocks_zero():
    table = tables.moe_align_block_size(example()[0], 3, 4, unused_expert=0)
    assert table.expert_ids.tolist() == [0, 1, 2, 0, 0]


def test_moe_sorting_gives_the_worked_example_of_aiter():
    table = tables.moe_sorting(*example(), 3, 4)
    pad = 0x2000004
    assert table.sorted_ids.tolist() == [
        *(0x0, 0x2, 0x1000003, pad),
        *(0x1000001, pad, pad, pad),
        *(0x1000000, 0x1, 0x1000002, 0x3),
        *[pad] * 6,
    ]
    weights = [0.6, 0.5, 0.2, 0, 0.3, 0, 0, 0, 0.4, 0.7, 0.5, 0.8, 0, 0, 0, 0, 0, 0]
    assert torch.equal(table.sorted_weights, torch.tensor(weights))
    assert table.sorted_expert_ids.tolist() == [0, 1, 2, -1, -1]
    assert table.num_valid_ids.tolist() == [12, 4]


def test_moe_sorting_gives_the_worked_example_with_a_mask():
    table = tables.moe_sorting(*example(), 3, 4, expert_mask=ints(0, 1, 1))
    pad = 0x2000004
    assert table.sorted_ids[:8].tolist() == [
        0x1000001,
        pad,
        pad,
        pad,
        0x1000000,
        0x1,
        0x1000002,
        0x3,
    ]
    assert table.sorted_expert_ids[:2].tolist() == [0, 1]
    assert table.num_valid_ids.tolist() == [8, 4]


def test_moe_sorting_gives_the_example_of_the_aiter_header():
    ids = torch.tensor([[0, 3, 5], [2, 3, 5], [1, 3, 5], [1, 2, 3], [1, 3, 5]], dtype=torch.int32)
    table = tables.moe_sorting(ids, torch.full((5, 3), 1 / 3), 6, 4)
    assert table.sorted_expert_ids[:6].tolist() == [0, 1, 2, 3, 3, 5]
    assert table.num_valid_ids.tolist() == [24, 5]


def test_moe_sorting_pads_with_the_number_of_tokens_alone_if_asked():
    table = tables.moe_sorting(*example(), 3, 4, sentinel="m")
    assert table.sorted_ids[3].item() == 4


def test_moe_sorting_counts_only_local_tokens():
    table = tables.moe_sorting(*example(), 3, 4, num_local_tokens=ints(2))
    pad = 0x2000002
    expected = [0, pad, pad, pad, 0x1000001, pad, pad, pad, 0x1000000, 1, pad, pad]
    assert table.sorted_ids[:12].tolist() == expected
    assert table.num_valid_ids.tolist() == [12, 2]


def test_grouped_gemm_of_the_worked_example():
    table = tables.grouped_gemm(example()[0], 3, n=64, k=32)
    assert table.tokens_per_expert.tolist() == [3, 1, 4]
    assert table.offsets_inclusive.tolist() == [3, 4, 8]
    assert table.offsets_exclusive.tolist() == [0, 3, 4, 8]
    assert table.permutation.tolist() == [0, 4, 7, 3, 1, 2, 5, 6]
    assert table.inverse.tolist() == [[0, 4], [5, 3], [1, 6], [7, 2]]
    assert table.problem_sizes.tolist() == [[3, 64, 32], [1, 64, 32], [4, 64, 32]]


def test_grouped_gemm_rounds_the_rows_of_an_expert_up():
    table = tables.grouped_gemm(example()[0], 3, align=4)
    assert table.offsets_exclusive.tolist() == [0, 4, 8, 12]
    assert table.permutation[:12].tolist() == [0, 4, 7, 8, 3, 8, 8, 8, 1, 2, 5, 6]
    assert table.tokens_per_expert.tolist() == [3, 1, 4]
    assert table.problem_sizes is None


def test_batched_align_lists_the_rows_in_use():
    table = tables.batched_moe_align_block_size(5, 4, ints(3, 0, 5))
    assert table.sorted_token_ids.tolist() == [0, 1, 2, 15, 10, 11, 12, 13, 14] + [15] * 15
    assert table.expert_ids.tolist() == [0, 2, 2, -1, -1, -1]
    assert table.num_tokens_post_padded.tolist() == [12]


# Random tables against the references.


@st.composite
def routed(draw, max_experts: int = 40):
    experts = draw(st.integers(1, max_experts))
    top_k = draw(st.integers(1, min(experts, 32)))
    tokens = draw(st.integers(0, 30))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    crowded = draw(st.booleans())
    pool = np.arange(experts)
    rows = [
        (pool if crowded else generator.permutation(pool))[:top_k].tolist() for _ in range(tokens)
    ]
    return rows, experts, top_k, draw(st.integers(1, 9))


@settings(deadline=None, max_examples=200)
@given(routed(), st.booleans(), st.sampled_from(["drop", "mark"]), st.data())
def test_align_equals_the_reference(case, mapped, foreign, data):
    rows, experts, top_k, block = case
    here = data.draw(st.lists(st.booleans(), min_size=experts, max_size=experts))
    numbers = iter(range(experts))
    expert_map = [next(numbers) if local else -1 for local in here] if mapped else None
    unused = data.draw(st.sampled_from([-1, 0]))
    table = tables.moe_align_block_size(
        reference.ids_of(rows, top_k, data.draw(st.sampled_from([torch.int32, torch.int64]))),
        experts,
        block,
        expert_map=None if expert_map is None else ints(*expert_map),
        foreign=foreign,
        unused_expert=unused,
        length=len(rows) * top_k + experts * (block - 1),
    )
    expected = (
        reference.align(rows, experts, block, expert_map=expert_map, foreign=foreign, unused=unused)
        if rows
        else None
    )
    if expected is None:
        assert table.num_tokens_post_padded.item() == 0
        return
    assert table.sorted_token_ids.tolist() == expected.ids
    assert table.expert_ids.tolist() == expected.experts
    assert table.num_tokens_post_padded.tolist() == [expected.total]


@settings(deadline=None, max_examples=200)
@given(routed(), st.data())
def test_moe_sorting_equals_the_reference(case, data):
    rows, experts, top_k, block = case
    weights = torch.rand(len(rows), top_k)
    mask = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=experts, max_size=experts))
    local = data.draw(st.none() | st.integers(0, len(rows)))
    sentinel = data.draw(st.sampled_from(["topk_m", "m"]))
    table = tables.moe_sorting(
        reference.ids_of(rows, top_k),
        weights,
        experts,
        block,
        expert_mask=None if mask is None else ints(*mask),
        num_local_tokens=None if local is None else ints(local),
        sentinel=sentinel,
    )
    expected = reference.aiter_sorting(
        rows,
        weights.tolist(),
        top_k,
        experts,
        block,
        mask=mask,
        local_tokens=local,
        sentinel=sentinel,
    )
    assert table.sorted_ids.tolist() == expected.ids
    assert table.sorted_weights.tolist() == expected.weights
    assert table.sorted_expert_ids.tolist() == expected.experts
    assert table.num_valid_ids.tolist() == [expected.total, len(rows) if local is None else local]


@settings(deadline=None, max_examples=100)
@given(routed(), st.integers(1, 9))
def test_grouped_gemm_permutation_and_inverse_undo_each_other(case, align):
    rows, experts, top_k, _ = case
    ids = reference.ids_of(rows, top_k)
    table = tables.grouped_gemm(ids, experts, align=align)
    pairs = torch.arange(ids.numel(), dtype=torch.int32)
    assert torch.equal(table.permutation[table.inverse.flatten().long()], pairs)
    counts = counts_of(ids, experts)
    assert torch.equal(table.tokens_per_expert.long(), counts)
    padded = (counts + align - 1) // align * align
    assert torch.equal(table.offsets_inclusive.long(), padded.cumsum(0))
    assert torch.equal(table.offsets_exclusive[1:], table.offsets_inclusive)
    assert (table.permutation == ids.numel()).sum() == table.permutation.numel() - ids.numel()


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(100_000, 256, 8), (3, 1024, 32)])
def test_large_sorting_equals_a_stable_argsort(tokens, experts, top_k):
    routing = tables.topk_routing(tokens, experts, top_k, distribution="zipf", s=0.7)
    table = tables.moe_sorting(routing.topk_ids, routing.topk_weights, experts, 1)
    order = torch.argsort(routing.topk_ids.flatten(), stable=True)
    packed = (order % top_k << 24 | order // top_k).int()
    assert torch.equal(table.sorted_ids[: order.numel()], packed)
    assert torch.equal(table.sorted_weights[: order.numel()], routing.topk_weights.flatten()[order])


def test_a_sorted_table_does_not_depend_on_the_number_of_threads(two_threads):
    def build() -> list[torch.Tensor]:
        routing = tables.topk_routing(40_000, 128, 8, distribution="zipf", s=0.5)
        table = tables.moe_sorting(routing.topk_ids, routing.topk_weights, 128, 64)
        return [routing.topk_ids, routing.topk_weights, table.sorted_ids, table.sorted_weights]

    torch.set_num_threads(1)
    alone = build()
    torch.set_num_threads(2)
    assert all(torch.equal(a, b) for a, b in zip(alone, build(), strict=True))


# Requirements by name.


def test_r26_tables_equal_the_reference_sorter_bit_for_bit():
    routing = tables.topk_routing(300, 24, 4, distribution="zipf", seed=3)
    rows, weights = routing.topk_ids.tolist(), routing.topk_weights.tolist()
    for sentinel in ("topk_m", "m"):
        table = tables.moe_sorting(
            routing.topk_ids, routing.topk_weights, 24, 32, sentinel=sentinel
        )
        expected = reference.aiter_sorting(rows, weights, 4, 24, 32, sentinel=sentinel)
        assert table.sorted_ids.tolist() == expected.ids
        assert table.sorted_weights.tolist() == expected.weights
        assert table.sorted_expert_ids.tolist() == expected.experts
        assert table.num_valid_ids.tolist() == [expected.total, 300]


ALL_DISTRIBUTIONS = [
    {"distribution": "uniform"},
    {"distribution": "zipf", "s": 0.5},
    {"distribution": "zipf", "s": 3.0},
    {"distribution": "hot", "hot": 9},
    {"distribution": "balanced", "ranks": 4},
    {"distribution": "histogram", "histogram": list(range(32))},
    {"distribution": "power_law", "alpha": 1.2},
    {"distribution": "one_hot"},
]


@pytest.mark.parametrize(
    "options", ALL_DISTRIBUTIONS, ids=lambda o: "-".join(map(str, o.values()))[:20]
)
def test_r27_no_token_has_an_expert_twice(options):
    routing = tables.topk_routing(500, 32, 8, seed=1, **options)
    assert_rows_distinct(routing.topk_ids)
    assert routing.topk_ids.min() >= 0
    assert routing.topk_ids.max() < 32


def test_r28_tables_are_built_in_place_without_host_arrays_that_grow_with_the_tokens():
    table = tables.routing_table(1 << 20, 256, 8)
    assert table.numel() == tables.routing_table(1, 256, 8).numel() == 3 * 256 + 1
    ids = torch.empty(1000, 8, dtype=torch.int32)
    weights = torch.empty(1000, 8)
    routing = tables.topk_routing(1000, 256, 8, out=(ids, weights), table=table)
    assert routing.topk_ids.data_ptr() == ids.data_ptr()
    assert routing.topk_weights.data_ptr() == weights.data_ptr()


@pytest.mark.parametrize(
    "options", ALL_DISTRIBUTIONS, ids=lambda o: "-".join(map(str, o.values()))[:20]
)
def test_r43_a_seed_gives_equal_bits_and_another_seed_others(options):
    first, again = (tables.topk_routing(200, 32, 4, seed=7, **options) for _ in range(2))
    assert torch.equal(first.topk_ids, again.topk_ids)
    assert torch.equal(first.topk_weights, again.topk_weights)
    other = tables.topk_routing(200, 32, 4, seed=8, **options)
    assert not torch.equal(first.topk_ids, other.topk_ids)
    assert not torch.equal(first.topk_weights, other.topk_weights)


def python_mix(i: int, k1: int, k2: int) -> int:
    x = (i ^ k1) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x ^= k2
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def python_keys(seed: int, stream: int, high: int) -> tuple[int, int]:
    def splitmix(x: int) -> int:
        mask = 2**64 - 1
        x = x + 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    key = splitmix(splitmix(splitmix(seed) ^ stream) ^ high)
    return key & 0xFFFFFFFF, key >> 32


def test_r43_uniform_routing_is_the_documented_function_of_seed_and_counter():
    tokens, experts, top_k, seed = 50, 12, 5, 99
    expected = []
    for token in range(tokens):
        row: list[int] = []
        for slot in range(top_k):
            for attempt in range(8):
                random = python_mix(token * top_k + slot, *python_keys(seed, 0, attempt))
                expert = random * experts >> 32
                if expert not in row:
                    row.append(expert)
                    break
        expected.append(row)
    routing = tables.topk_routing(tokens, experts, top_k, seed=seed)
    complete = [token for token, row in enumerate(expected) if len(row) == top_k]
    assert len(complete) > 45
    for token in complete:
        assert routing.topk_ids[token].tolist() == expected[token]


# Distributions.


def test_uniform_activates_as_many_experts_as_chance_does():
    routing = tables.topk_routing(16, 256, 8)
    expected = 256 * (1 - (1 - 8 / 256) ** 16)
    assert abs(routing.stats().active_experts - expected) < 15


def test_uniform_is_uniform():
    counts = counts_of(tables.topk_routing(20_000, 64, 6).topk_ids, 64)
    mean = 20_000 * 6 / 64
    assert (counts - mean).abs().max() < 6 * math.sqrt(mean)


def test_plackett_luce_has_the_probabilities_of_its_definition():
    """First and second choice among three experts, loads 1 : 1/2 : 1/3."""
    draws = 60_000
    ids = tables.topk_routing(draws, 3, 2, distribution="zipf", s=1.0, seed=4).topk_ids
    first = counts_of(ids[:, 0], 3)
    hottest, middle, coldest = first.argsort(descending=True).tolist()
    loads = {hottest: 1.0, middle: 0.5, coldest: 1 / 3}
    total = sum(loads.values())
    for a, load_a in loads.items():
        for b, load_b in loads.items():
            if a == b:
                continue
            probability = load_a / total * load_b / (total - load_a)
            share = ((ids[:, 0] == a) & (ids[:, 1] == b)).float().mean().item()
            assert abs(share - probability) < 5 * math.sqrt(probability / draws)


@pytest.mark.parametrize("s", [0.0, 1.0, 6.0])
def test_a_token_may_take_all_experts(s):
    ids = tables.topk_routing(300, 32, 32, distribution="zipf", s=s).topk_ids
    assert torch.equal(ids.sort(1).values, torch.arange(32).int().expand(300, 32))


def test_after_failed_tries_the_draw_is_still_plackett_luce():
    """With a steep load nearly every later slot comes from the exact draw: the order tells."""
    ids = tables.topk_routing(4000, 4, 4, distribution="zipf", s=8.0, seed=2).topk_ids
    hottest = counts_of(ids[:, 0], 4).argmax()
    left = ids[ids[:, 0] == hottest]
    second = counts_of(left[:, 1], 4)
    third_rank_share = second.sort(descending=True).values[1] / len(left)
    load = {2: 2.0**-8, 3: 3.0**-8, 4: 4.0**-8}
    assert abs(third_rank_share - load[3] / sum(load.values())) < 0.02


@pytest.mark.parametrize(("s", "expected"), [(0.5, 5.5), (0.7, 8.6), (1.0, 13.4)])
def test_zipf_skews_as_the_table_of_distributions_says(s, expected):
    stats = tables.topk_routing(4096, 128, 8, distribution="zipf", s=s).stats()
    assert stats.max_over_mean == pytest.approx(expected, rel=0.1)


def test_hot_experts_are_not_the_first_ones_and_differ_by_layer():
    ids = tables.topk_routing(2000, 64, 4, distribution="zipf", s=1.5, layers=8).topk_ids
    hottest = [counts_of(layer, 64).argmax().item() for layer in ids]
    assert len(set(hottest)) > 4


def test_hot_uses_only_so_many_experts():
    stats = tables.topk_routing(2000, 64, 4, distribution="hot", hot=10).stats()
    assert stats.active_experts == 10


@pytest.mark.parametrize(("tokens", "experts", "top_k", "ranks"), [(100, 48, 5, 8), (7, 16, 3, 4)])
def test_balanced_counts_differ_by_at_most_one_also_between_ranks(tokens, experts, top_k, ranks):
    routing = tables.topk_routing(tokens, experts, top_k, distribution="balanced", ranks=ranks)
    counts = counts_of(routing.topk_ids, experts)
    assert counts.max() - counts.min() <= 1
    per_rank = routing.stats(ranks=ranks).load_per_rank
    assert max(per_rank) - min(per_rank) <= 1


def test_a_histogram_that_adds_up_is_met_exactly():
    histogram = [0, 100, 50, 7, 3, 40]
    routing = tables.topk_routing(100, 6, 2, distribution="histogram", histogram=histogram)
    assert counts_of(routing.topk_ids, 6).tolist() == histogram


def test_a_histogram_is_scaled_and_capped_at_one_pair_per_token():
    routing = tables.topk_routing(100, 4, 2, distribution="histogram", histogram=[90, 5, 3, 2])
    assert counts_of(routing.topk_ids, 4).tolist() == [100, 50, 30, 20]


def test_a_histogram_may_differ_by_layer():
    histogram = [[4, 4, 0], [0, 4, 4]]
    routing = tables.topk_routing(4, 3, 2, distribution="histogram", histogram=histogram, layers=2)
    assert [counts_of(layer, 3).tolist() for layer in routing.topk_ids] == histogram


@pytest.mark.parametrize(("alpha", "expected"), [(1.01, 7.9), (1.2, 14.6)])
def test_power_law_skews_as_its_model_does(alpha, expected):
    skews = [
        tables.topk_routing(4096, 128, 8, distribution="power_law", alpha=alpha, seed=seed)
        .stats()
        .max_over_mean
        for seed in range(30)
    ]
    assert sorted(skews)[15] == pytest.approx(expected, rel=0.25)


def test_power_law_with_exponent_one_is_the_limit_of_its_neighbours():
    counts = [
        counts_of(
            tables.topk_routing(1000, 32, 2, distribution="power_law", alpha=alpha).topk_ids, 32
        )
        for alpha in (1.0, 1.0 + 1e-6)
    ]
    assert (counts[0] - counts[1]).abs().max() <= 1


def test_one_hot_sends_all_tokens_to_the_same_experts():
    ids = tables.topk_routing(50, 64, 4, distribution="one_hot").topk_ids
    assert len(ids.unique()) == 4


def test_groups_limit_the_experts_of_a_token():
    ids = tables.topk_routing(3000, 256, 8, groups=(8, 4)).topk_ids
    assert_rows_distinct(ids)
    groups = ids // 32
    assert max(len(row.unique()) for row in groups) == 4
    assert len(groups.unique()) == 8


def test_shared_experts_are_appended_to_each_row():
    routing = tables.topk_routing(20, 16, 3, shared_experts=2)
    assert routing.topk_ids.shape == (20, 5)
    assert (routing.topk_ids[:, 3:] == ints(16, 17)).all()
    assert (routing.topk_ids[:, :3] < 16).all()
    assert routing.stats().num_experts == 18


@pytest.mark.parametrize("top_k", [1, 2, 3, 8])
def test_weights_are_positive_and_rows_sum_to_exactly_one(top_k):
    weights = tables.topk_routing(1000, 32, top_k).topk_weights
    assert (weights > 0).all()
    assert torch.equal(weights.sum(1), torch.ones(1000))


def test_layers_come_with_a_leading_dimension_and_draws_of_their_own():
    routing = tables.topk_routing(10, 8, 2, layers=3)
    assert routing.topk_ids.shape == routing.topk_weights.shape == (3, 10, 2)
    assert not torch.equal(routing.topk_ids[0], routing.topk_ids[1])


def test_no_tokens_give_an_empty_routing_and_tables_of_padding():
    routing = tables.topk_routing(0, 4, 2, distribution="balanced")
    assert routing.topk_ids.shape == (0, 2)
    assert routing.stats().max_over_mean == 0.0
    table = tables.moe_align_block_size(routing.topk_ids, 4, 4)
    assert table.num_tokens_post_padded.tolist() == [0]
    assert table.expert_ids.tolist() == [-1, -1, -1]


# Given buffers.


def test_out_forms_fill_the_given_buffers_and_respect_their_lengths():
    ids, weights = example()
    aligned = tuple(torch.full((n,), -7, dtype=torch.int32) for n in (20, 6, 1))
    tables.moe_align_block_size(ids, 3, 4, out=aligned)
    assert aligned[0].tolist() == [0, 4, 7, 8, 3, 8, 8, 8, 1, 2, 5, 6] + [8] * 8
    assert aligned[1].tolist() == [0, 1, 2, -1, -1, -1]

    batched = tuple(torch.full((n,), -7, dtype=torch.int32) for n in (12, 4, 1))
    tables.batched_moe_align_block_size(5, 4, ints(3, 0, 5), out=batched)
    assert batched[0].tolist() == [0, 1, 2, 15, 10, 11, 12, 13, 14, 15, 15, 15]
    assert batched[1].tolist() == [0, 2, 2, -1]

    sorting = (
        torch.full((12,), -7, dtype=torch.int32),
        torch.full((12,), -7.0),
        torch.full((3,), -7, dtype=torch.int32),
        torch.full((1,), -7, dtype=torch.int32),
    )
    table = tables.moe_sorting(ids, weights, 3, 4, out=sorting)
    assert table.sorted_ids is sorting[0]
    assert sorting[2].tolist() == [0, 1, 2]
    assert sorting[3].tolist() == [12]
    assert table.stats().real_rows == 8

    grouped = tables.grouped_gemm(ids, 3, n=2, k=5)
    buffers = tuple(
        torch.full_like(tensor, -7)
        for tensor in (
            grouped.offsets_inclusive,
            grouped.offsets_exclusive[:3].clone(),
            grouped.permutation,
            grouped.inverse,
            grouped.tokens_per_expert,
            grouped.problem_sizes,
        )
    )
    again = tables.grouped_gemm(ids, 3, n=2, k=5, out=buffers)
    assert again.offsets_exclusive.tolist() == [0, 3, 4]
    assert torch.equal(again.problem_sizes, grouped.problem_sizes)
    assert torch.equal(again.inverse, grouped.inverse)


def test_a_length_given_sets_the_buffers():
    table = tables.moe_align_block_size(example()[0], 3, 4, length=12)
    assert table.sorted_token_ids.numel() == 12
    assert table.expert_ids.numel() == 3


def test_unsigned_and_strided_ids_are_read():
    ids = torch.tensor(ROWS, dtype=torch.int32)
    expected = tables.moe_align_block_size(ids, 3, 4).sorted_token_ids
    assert torch.equal(
        tables.moe_align_block_size(ids.view(torch.uint32), 3, 4).sorted_token_ids, expected
    )
    strided = torch.stack([ids, ids], dim=2)[:, :, 0]
    assert torch.equal(tables.moe_align_block_size(strided, 3, 4).sorted_token_ids, expected)


def test_align_ignores_ids_that_are_no_expert():
    ids = torch.tensor([[0, -1], [2**33, 1]])
    table = tables.moe_align_block_size(ids, 2, 2)
    assert table.sorted_token_ids.tolist() == [0, 4, 3, 4, 4, 4]


# Statistics.


def test_stats_of_the_worked_example():
    ids, weights = example()
    sorting = tables.moe_sorting(ids, weights, 3, 4).stats(ranks=3)
    assert sorting == tables.LoadStats(
        num_experts=3,
        active_experts=3,
        real_rows=8,
        padded_rows=12,
        max_over_mean=1.5,
        load_per_rank=(3, 1, 4),
    )
    assert sorting.padded_over_real == 1.5
    assert tables.moe_align_block_size(ids, 3, 4).stats(ranks=3) == sorting
    assert tables.grouped_gemm(ids, 3, align=4).stats(ranks=3) == sorting
    assert tables.Routing(ids, weights, 3).stats().padded_rows == 8
    batched = tables.batched_moe_align_block_size(5, 4, ints(3, 0, 5)).stats()
    assert (batched.active_experts, batched.real_rows, batched.padded_rows) == (2, 8, 12)


def test_stats_leave_out_blocks_of_other_ranks():
    table = tables.moe_align_block_size(
        example()[0], 3, 4, expert_map=ints(-1, 0, 1), foreign="mark"
    )
    assert table.stats().real_rows == 5


def test_stats_of_layers_want_a_layer():
    routing = tables.topk_routing(10, 8, 2, layers=2)
    assert routing.stats(layer=1).real_rows == 20
    with pytest.raises(ValueError, match=r"layer in \[0, 2\), got 2"):
        routing.stats(layer=2)
    with pytest.raises(ValueError, match="ranks to divide the 8 experts, got 3"):
        routing.stats(layer=0, ranks=3)


# Histograms from files.


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", json.dumps([1, 2, 3]), [1, 2, 3]),
        ("b.json", json.dumps({"counts": [[1, 2], [3, 4]]}), [[1, 2], [3, 4]]),
        ("c.csv", "1\n2\n3\n", [1, 2, 3]),
        ("d.csv", "1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("e.csv", "expert,count\n2,5\n0,7\n", [7, 0, 5]),
        ("f.csv", "layer,expert,count\n1,0,5\n0,1,7\n", [[0, 7], [5, 0]]),
    ],
)
def test_a_histogram_is_read_from_text_files(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content)
    assert tables.read_histogram(path).tolist() == expected


def test_a_histogram_is_read_from_numpy_files_and_used(tmp_path):
    one, named = tmp_path / "one.npz", tmp_path / "named.npz"
    np.savez(one, load=np.array([4, 3, 1]))
    np.savez(named, other=np.zeros(2), counts=np.array([4, 3, 1]))
    assert tables.read_histogram(named).tolist() == [4, 3, 1]
    routing = tables.topk_routing(4, 3, 2, distribution="histogram", histogram=one)
    assert counts_of(routing.topk_ids, 3).tolist() == [4, 3, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1", r"expected one of \.json, \.csv, \.npz, got '\.txt'"),
        ("a.json", "{}", "no table of loads: 'counts'"),
        ("b.json", '["x"]', "no table of loads"),
        ("c.json", "[]", r"expected loads \[E\] or \[layers, E\], got \[0\]"),
        ("d.csv", "", "it is empty"),
        ("e.csv", "1,x", "no table of loads"),
    ],
)
def test_a_bad_histogram_file_is_named_with_its_fault(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        tables.read_histogram(path)
    assert str(path) in str(error.value)


def test_a_numpy_file_with_several_arrays_must_name_the_counts(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(2), y=np.zeros(2))
    with pytest.raises(ValueError, match="expected one array or one called 'counts'"):
        tables.read_histogram(path)


# Errors name the value and the limit.


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((4, 8, 9), {}, "expected top_k <= num_experts = 8, got 9"),
        ((-1, 8, 2), {}, "expected num_tokens >= 0, got -1"),
        ((4, 0, 1), {}, "expected num_experts >= 1, got 0"),
        ((4, 8, 0), {}, "expected top_k >= 1, got 0"),
        ((2**30, 8, 2), {}, "<= 2147483647, got 2147483648"),
        ((4, 8, 2), {"distribution": "pareto"}, "got 'pareto'"),
        ((4, 8, 2), {"s": -1.0}, "expected s >= 0, got -1"),
        ((4, 8, 2), {"alpha": -1.0}, "expected alpha >= 0, got -1"),
        ((4, 8, 2), {"distribution": "hot", "hot": 1}, "expected hot >= 2, got 1"),
        ((4, 8, 2), {"distribution": "hot", "hot": 9}, "expected hot <= 8, got 9"),
        ((4, 8, 2), {"ranks": 3}, "ranks to divide num_experts = 8, got 3"),
        ((4, 8, 2), {"groups": (3, 1)}, "n_group to divide num_experts = 8, got 3"),
        ((4, 8, 2), {"groups": (2, 3)}, "expected topk_group <= 2, got 3"),
        ((4, 8, 2), {"groups": (8, 1)}, "expected top_k <= 1, got 2"),
        ((4, 8, 2), {"groups": (2, 1), "distribution": "balanced"}, "got balanced"),
        ((4, 8, 2), {"layers": 0}, "expected layers >= 1, got 0"),
        ((4, 8, 2), {"shared_experts": -1}, "expected shared_experts >= 0, got -1"),
        ((4, 8, 2), {"histogram": [1] * 8}, "got distribution 'uniform' with a histogram"),
        ((4, 8, 2), {"distribution": "histogram"}, "got distribution 'histogram' without one"),
        (
            (4, 8, 2),
            {"distribution": "histogram", "histogram": [1] * 7},
            r"\[num_experts\] = \[8\] .* got \[7\]",
        ),
        (
            (4, 3, 2),
            {"distribution": "histogram", "histogram": [1, -1, 1]},
            "got -1 for expert 1",
        ),
        (
            (4, 3, 2),
            {"distribution": "histogram", "histogram": [1, 0, 0]},
            "at least top_k = 2 experts with a load, got 1",
        ),
        ((4, 8, 2), {"table": torch.zeros(1)}, "needs out"),
        ((4, 8, 2), {"device": "meta"}, "got device meta"),
    ],
)
def test_a_bad_routing_is_refused_by_value_and_limit(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        tables.topk_routing(*arguments, **options)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ((torch.empty(3, 2, dtype=torch.int32), torch.empty(3, 2)), ValueError, "for 4 tokens"),
        ((torch.empty(4, 3, dtype=torch.int32), torch.empty(4, 3)), ValueError, r"= 2, got sizes"),
        ((torch.empty(4, 2, dtype=torch.int32), torch.empty(4, 3)), ValueError, "of the sizes of"),
        ((torch.empty(4, 2), torch.empty(4, 2)), TypeError, "expected topk_ids of dtype Int"),
        (
            (torch.empty(2, 4, dtype=torch.int32).T, torch.empty(4, 2)),
            ValueError,
            "expected topk_ids contiguous",
        ),
    ],
)
def test_routing_buffers_that_do_not_fit_are_refused(out, error, message):
    with pytest.raises(error, match=message):
        tables.topk_routing(4, 8, 2, out=out)


def test_a_routing_table_of_other_sizes_is_refused():
    out = (torch.empty(4, 2, dtype=torch.int32), torch.empty(4, 2))
    with pytest.raises(
        ValueError, match=r"expected a routing table of sizes \[1, 25\], got \[1, 13\]"
    ):
        tables.topk_routing(4, 8, 2, out=out, table=tables.routing_table(4, 4, 2))


def test_a_table_that_does_not_fit_says_by_how_much():
    ids, weights = example()
    message = "the table has 4 entries more than its buffers hold"
    with pytest.raises(ValueError, match=message):
        tables.moe_align_block_size(ids, 3, 4, length=8)
    with pytest.raises(ValueError, match=message):
        tables.moe_sorting(ids, weights, 3, 4, length=8)
    short = tuple(torch.empty(n, dtype=torch.int32) for n in (8, 2, 1))
    with pytest.raises(ValueError, match=message):
        tables.batched_moe_align_block_size(5, 4, ints(3, 0, 5), out=short)


def test_a_table_with_too_few_blocks_is_refused():
    out = tuple(torch.empty(n, dtype=torch.int32) for n in (17, 2, 1))
    with pytest.raises(ValueError, match="4 entries more"):
        tables.moe_align_block_size(example()[0], 3, 4, out=out)


def test_ids_outside_and_ids_repeated_are_refused_where_the_engine_trusts_them():
    ids, weights = example()
    with pytest.raises(ValueError, match=r"4 expert ids are outside \[0, num_experts\)"):
        tables.moe_sorting(ids, weights, 2, 4, length=100)
    with pytest.raises(ValueError, match="4 expert ids are outside"):
        tables.grouped_gemm(ids, 2)
    with pytest.raises(ValueError, match="2 pairs repeat an expert"):
        tables.moe_sorting(torch.tensor([[1, 1], [0, 2], [2, 2]]), torch.ones(3, 2), 3, 4)
    with pytest.raises(ValueError, match=r"1 experts have .* outside \[0, max_tokens = 5\]"):
        tables.batched_moe_align_block_size(5, 4, ints(3, 6))


def sort_with(**changes):
    arguments = {
        "topk_ids": example()[0],
        "topk_weights": example()[1],
        "num_experts": 3,
        "block_size": 4,
    } | changes
    return tables.moe_sorting(**arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_size": 0}, ValueError, "expected block_size >= 1, got 0"),
        ({"num_experts": 0}, ValueError, "expected num_experts >= 1, got 0"),
        ({"length": -1}, ValueError, "expected length >= 0, got -1"),
        ({"sentinel": "x"}, ValueError, "expected sentinel 'topk_m' or 'm', got 'x'"),
        ({"topk_ids": torch.zeros(4, 2)}, TypeError, "of dtype int32, int64 or uint32, got Float"),
        ({"topk_ids": ints(1, 2)}, ValueError, r"sizes \[tokens, top_k\], got \[2\]"),
        ({"topk_weights": torch.zeros(4, 2).double()}, TypeError, "dtype Float, got Double"),
        ({"topk_weights": torch.zeros(4, 1)}, ValueError, r"\[4, 2\], got \[4, 1\]"),
        ({"expert_mask": ints(1)}, ValueError, "expert_mask of at least 3 entries, got 1"),
        ({"num_local_tokens": torch.tensor([1])}, TypeError, "of dtype Int, got Long"),
        ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32, device="meta")}, ValueError, "meta"),
        (
            {"topk_ids": torch.zeros(2**24, 1).int(), "topk_weights": torch.zeros(2**24, 1)},
            ValueError,
            "expected tokens of the packed layout <= 16777215, got 16777216",
        ),
        (
            {"topk_ids": torch.zeros(1, 256).int(), "topk_weights": torch.zeros(1, 256)},
            ValueError,
            "expected top_k of the packed layout <= 255, got 256",
        ),
        ({"num_experts": 2**20, "block_size": 2**20}, ValueError, "<= 2147483647, got 1099"),
    ],
)
def test_a_bad_sorting_is_refused_by_value_and_limit(changes, error, message):
    with pytest.raises(error, match=message):
        sort_with(**changes)


def test_bad_align_options_are_refused():
    ids = example()[0]
    with pytest.raises(ValueError, match="expected foreign 'drop' or 'mark', got 'keep'"):
        tables.moe_align_block_size(ids, 3, 4, foreign="keep")
    with pytest.raises(ValueError, match="expert_map of num_experts = 3 entries, got 2"):
        tables.moe_align_block_size(ids, 3, 4, expert_map=ints(0, 1))
    with pytest.raises(ValueError, match="problem sizes need both n and k, got only n"):
        tables.grouped_gemm(ids, 3, n=4)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 64, 20_000])
def test_r43_device_and_cpu_give_the_same_bits(tokens):
    for options in ({"distribution": "zipf", "s": 0.5}, {"distribution": "balanced"}):
        here = tables.topk_routing(tokens, 64, 8, **options)
        there = tables.topk_routing(tokens, 64, 8, device="cuda", **options)
        assert torch.equal(here.topk_ids, there.topk_ids.cpu())
        assert torch.equal(here.topk_weights, there.topk_weights.cpu())
        on_cpu = tables.moe_sorting(here.topk_ids, here.topk_weights, 64, 32)
        on_device = tables.moe_sorting(there.topk_ids, there.topk_weights, 64, 32)
        assert torch.equal(on_cpu.sorted_ids, on_device.sorted_ids.cpu())
        assert torch.equal(on_cpu.sorted_weights, on_device.sorted_weights.cpu())
        assert torch.equal(on_cpu.num_valid_ids, on_device.num_valid_ids.cpu())
