"""What arguments of MoE operators must hold, written from the rules of the kernels that read them.

Each function accepts an argument or fails an assertion; none knows how recipes make the values.
"""

from __future__ import annotations

import itertools

import torch

SLOT_BITS = 24


def topk(ids, experts, *, least=0):
    """R-TOPK: distinct within a row, each one an expert."""
    rows = ids.to(torch.int64).tolist()
    assert rows
    assert all(len(set(row)) == len(row) for row in rows)
    assert all(least <= expert < experts for row in rows for expert in row)


def topk_weights(weights):
    """R-TOPKW: positive, rows add up to one."""
    assert (weights > 0).all()
    assert torch.allclose(weights.float().sum(-1), torch.ones(weights.shape[:-1]), atol=1e-2)


def vllm_sorted(ids, of_block, total, *, tokens, top_k, block, experts, all_pairs=True):
    """R-VSORT: flat pairs, each once, in whole blocks of one expert each, experts ascending."""
    ids, of_block = ids.tolist(), of_block.tolist()
    (valid,) = total.tolist()
    pairs = tokens * top_k
    assert len(of_block) == -(-len(ids) // block)
    assert 0 < valid <= len(ids)
    assert valid % block == 0
    used = of_block[: valid // block]
    assert all(-1 <= expert < experts for expert in used)
    named = [expert for expert in used if expert >= 0]
    assert named == sorted(named)
    assert set(of_block[valid // block :]) <= {-1, 0}
    seen = [pair for pair in ids[:valid] if pair != pairs]
    assert len(set(seen)) == len(seen)
    assert all(0 <= pair < pairs for pair in seen)
    assert set(ids[valid:]) <= {pairs}
    if all_pairs:
        assert len(seen) == pairs
    by_token = {}
    for place, pair in enumerate(ids[:valid]):
        expert = used[place // block]
        if pair != pairs and expert >= 0:
            assert (pair // top_k, expert) not in by_token, "a token goes twice to an expert"
            by_token[pair // top_k, expert] = pair
        if pair != pairs and place % block:
            assert ids[place - 1] < pair, "pairs of an expert do not ascend"
    return len(seen)


def aiter_sorted(ids, of_block, valid, *, tokens, top_k, block, experts, weights=None, local=False):
    """R-ASORT: packed token and slot, each pair once, in whole blocks of one expert each."""
    ids = ids.tolist()
    total, *present = valid.tolist()
    assert present in ([], [tokens])
    assert 0 < total <= len(ids)
    assert total % block == 0
    padding = top_k << SLOT_BITS | tokens
    seen = {}
    if of_block is not None:
        of_block = of_block.tolist()
        assert len(of_block) == -(-len(ids) // block)
        assert all(0 <= expert < experts for expert in of_block)
        used = of_block[: total // block]
        assert used == sorted(used)
    for place, packed in enumerate(ids[:total]):
        if packed == padding:
            assert weights is None or weights[place] == 0
            continue
        token, slot = packed & ((1 << SLOT_BITS) - 1), packed >> SLOT_BITS
        assert token < tokens
        assert slot < top_k
        assert (token, slot) not in seen
        seen[token, slot] = None if of_block is None else of_block[place // block]
        assert weights is None or weights[place] > 0
    if not local:
        assert len(seen) == tokens * top_k
    if of_block is not None:
        assert len({(token, expert) for (token, _), expert in seen.items()}) == len(seen)
    return len(seen)


def expert_map(mapped, here):
    """R-EMAP: the experts here are numbered 0 to here - 1, all others are -1."""
    entries = mapped.tolist()
    assert sorted(entry for entry in entries if entry != -1) == list(range(here))


def expert_mask(mask, here, *, fake):
    """R-EMASK: as many ones as weights; an entry past the experts stands for none."""
    entries = mask.tolist()
    assert set(entries) <= {0, 1}
    assert sum(entries) == here
    assert not fake or entries[-1] == 0


def group_starts(starts, rows, experts):
    """R-GOFF of CUTLASS: where each expert's rows start, perhaps followed by their sum."""
    begins = starts.tolist()
    assert begins[0] == 0
    ends = begins if len(begins) == experts + 1 else [*begins, rows]
    assert len(ends) == experts + 1
    assert ends[-1] == rows
    counts = [after - before for before, after in itertools.pairwise(ends)]
    assert min(counts) >= 0
    return counts


def group_ends(ends, rows, *, unit):
    """R-GOFF of torch: inclusive ends, int32, sizes aligned where rows are."""
    assert ends.dtype is torch.int32
    entries = ends.tolist()
    assert entries == sorted(entries)
    assert entries[0] >= 0
    assert entries[-1] <= rows
    assert all(end % unit == 0 for end in entries)


def problem_sizes(problems, counts, n, k):
    """R-PROB: rows of each expert, columns and depth."""
    assert problems.tolist() == [[count, n, k] for count in counts]


def scale_starts(starts, counts):
    """R-SFOFF: each expert's scales start at a multiple of 128 rows."""
    at, expected = 0, [0]
    for count in counts:
        at += -(-count // 128) * 128
        expected.append(at)
    assert starts.tolist() == expected[: starts.numel()]


def token_counts(counts, room):
    """R-NTOK: rows in use of each expert."""
    entries = counts.tolist()
    assert all(0 <= entry <= room for entry in entries)
    assert sum(entries) > 0


def permutation(order, rows):
    """R-PERM: each target once."""
    places = order.flatten().tolist()
    assert len(set(places)) == len(places)
    assert all(0 <= place < rows for place in places)


def constant(strides, step):
    """Element strides: the same for every expert."""
    assert strides.dtype is torch.int64
    assert set(strides.flatten().tolist()) == {step}


def positive(*tensors):
    """Scales are finite and positive."""
    for tensor in tensors:
        assert torch.isfinite(tensor.float()).all()
        assert (tensor.float() > 0).all()
