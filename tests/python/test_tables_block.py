"""Block tables against references written from their descriptions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.tables import block
from opreplay.tables.block import (
    block_csr,
    block_table,
    positions,
    query_start_loc,
    req_to_token,
    seq_lens,
    slot_mapping,
)

MASK16 = 0xFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# The permutation, as kernels/block_permutation.h describes it.


def split_mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def permutation(pool: int, seed: int):
    rows = math.isqrt(pool - 1) + 1 if pool > 1 else 1
    columns = -(-pool // rows)
    keys = []
    for i in range(0, 8, 2):
        key = split_mix(split_mix(split_mix(seed) ^ int.from_bytes(b"blocks", "big")) ^ i)
        keys += [key & MASK16, key >> 32 & MASK16]
    rounds = 4 if pool >= 4096 else 8

    def hashed(x: int, key: int, size: int) -> int:
        h = ((x ^ key) * 0x88B5) & MASK16
        h = ((h ^ (h >> 7)) * 0xDB2D) & MASK16
        return h * size >> 16

    def place(x: int) -> int:
        while True:
            row, column = divmod(x, columns)
            for i in range(0, rounds, 2):
                row = (row + hashed(column, keys[i], rows)) % rows
                column = (column + hashed(row, keys[i + 1], columns)) % columns
            x = row * columns + column
            if x < pool:
                return x

    return place


def handed_out(order: str, pool: int, num_seqs: int, seed: int):
    """Id, counted from the first of the pool, of the n-th block that is handed out."""
    if order == "contiguous":
        return lambda n: n % pool
    if order == "permuted":
        place = permutation(pool, seed)
        return lambda n: place(n % pool)
    stride = max(1, num_seqs)
    while math.gcd(stride, pool) != 1:
        stride += 1
    return lambda n: n % pool * stride % pool


def reference(lens, size, num_blocks, *, width, order, reserve, prefix, policy, seed):
    """Rows of block ids and the lengths that hold; None if that is an error."""
    first = 1 if reserve else 0
    pool = num_blocks - first
    if policy == "shrink_lengths" and width is not None:
        lens = [min(n, width * size) for n in lens]

    def blocks(n):
        return -(-n // size)

    def shared(n):
        return min(prefix, (n - 1) // size) if n else 0

    if width is not None and any(blocks(n) > width for n in lens):
        return None
    shared_total = max(map(shared, lens), default=0)
    own_total = sum(blocks(n) - shared(n) for n in lens)
    needed = shared_total + own_total
    if needed > pool and policy == "error":
        return None
    if needed > pool and policy == "shrink_lengths":
        nonempty = sum(n > 0 for n in lens)
        left = pool - shared_total - nonempty
        if left < 0:
            return None
        kept = [
            1 + (blocks(n) - shared(n) - 1) * left // max(1, own_total - nonempty) for n in lens
        ]
        lens = [min(n, (shared(n) + k) * size) if n else 0 for n, k in zip(lens, kept, strict=True)]
    place = handed_out(order, pool, len(lens), seed)
    rows, next_own = [], shared_total
    for n in lens:
        own = blocks(n) - shared(n)
        ordinals = [*range(shared(n)), *range(next_own, next_own + own)]
        next_own += own
        rows.append([place(o) + first for o in ordinals])
    return rows, lens


@st.composite
def requests(draw):
    lens = draw(st.lists(st.integers(0, 200), max_size=12))
    return {
        "lens": lens,
        "size": draw(st.sampled_from([1, 3, 16, 33])),
        "num_blocks": draw(st.integers(2, 400) | st.sampled_from([4097, 5000, 100_000])),
        "width": draw(st.none() | st.integers(0, 60)),
        "order": draw(st.sampled_from(["permuted", "contiguous", "strided"])),
        "reserve": draw(st.booleans()),
        "prefix": draw(st.integers(0, 4)),
        "policy": draw(st.sampled_from(["error", "shrink_lengths", "share"])),
        "seed": draw(st.integers(0, MASK64 >> 1)),
    }


def options_of(request) -> dict:
    return {
        "order": request["order"],
        "reserve_block_zero": request["reserve"],
        "shared_prefix_blocks": request["prefix"],
        "on_exhausted": request["policy"],
        "seed": request["seed"],
    }


@given(request=requests())
@settings(max_examples=150, deadline=None)
def test_a_block_table_equals_the_reference(request):
    lens, options = ints(*request["lens"]), options_of(request)
    arguments = (lens, request["size"], request["num_blocks"])
    expected = reference(**request)
    if expected is None:
        with pytest.raises(ValueError, match="blocks"):
            block_table(*arguments, width=request["width"], **options)
        return
    rows, kept = expected
    result = block_table(*arguments, width=request["width"], **options)
    unshortened = max((-(-n // request["size"]) for n in request["lens"]), default=0)
    width = request["width"] if request["width"] is not None else unshortened
    assert result.table.dtype == torch.int32
    assert result.table.shape == (len(rows), width)
    assert result.table.tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert result.seq_lens.tolist() == kept


@given(request=requests(), spare=st.none() | st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_compressed_rows_hold_the_blocks_of_the_dense_table(request, spare):
    expected = reference(**{**request, "width": None})
    arguments = (ints(*request["lens"]), request["size"], request["num_blocks"])
    options = options_of(request)
    if expected is None:
        with pytest.raises(ValueError, match="blocks"):
            block_csr(*arguments, **options)
        return
    rows, kept = expected
    flat = [i for row in rows for i in row]
    length = None if spare is None else len(flat) + spare
    result = block_csr(*arguments, length=length, **options)
    starts = [sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
    assert result.kv_indptr.tolist() == starts
    assert result.kv_indices.tolist() == flat + [0] * (spare or 0)
    assert result.seq_lens.tolist() == kept
    size = request["size"]
    assert result.kv_last_page_len.tolist() == [
        n - (len(row) - 1) * size for n, row in zip(kept, rows, strict=True)
    ]
    assert all(1 <= last <= size for last in result.kv_last_page_len.tolist())


@given(
    batch=st.lists(
        st.integers(0, 90).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=9
    ),
    size=st.sampled_from([1, 3, 16]),
    spare=st.none() | st.integers(0, 20),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=100, deadline=None)
def test_token_indices_equal_the_reference(batch, size, spare, dtype):
    lens, queries = ints(*(n for n, _ in batch)), ints(*(q for _, q in batch))
    table = block_table(lens, size, 1000, width=90).table
    total = None if spare is None else int(queries.sum()) + spare
    expected_positions, expected_slots = [], []
    for row, (n, q) in enumerate(batch):
        for position in range(n - q, n):
            expected_positions.append(position)
            entry = int(table[row, position // size])
            expected_slots.append(entry * size + position % size)
    pad = spare or 0
    got = positions(lens, queries, total=total, dtype=dtype)
    assert got.dtype == dtype
    assert got.tolist() == expected_positions + [0] * pad
    got = slot_mapping(table, lens, queries, size, total=total, dtype=dtype)
    assert got.dtype == dtype
    assert got.tolist() == expected_slots + [-1] * pad
    starts = query_start_loc(queries)
    assert starts.dtype == torch.int32
    assert starts.tolist() == [sum(q for _, q in batch[:i]) for i in range(len(batch) + 1)]


@given(lens=st.lists(st.integers(0, 60), max_size=8), size=st.sampled_from([1, 3, 16]))
@settings(max_examples=100, deadline=None)
def test_req_to_token_spells_out_the_block_table(lens, size):
    table = block_table(ints(*lens), size, 500, width=60).table
    got = req_to_token(table, ints(*lens), size, context=64)
    expected = [
        [int(table[i, t // size]) * size + t % size if t < n else 0 for t in range(64)]
        for i, n in enumerate(lens)
    ]
    assert got.tolist() == expected
    assert req_to_token(table, ints(*lens), size).shape == (len(lens), 60 * size)


# The worked example of the documentation: two sequences, blocks of 16, a pool of 8.

EXAMPLE_TABLE = torch.tensor([[5, 2, 7], [1, 6, 0]], dtype=torch.int32)
EXAMPLE_LENS = ints(40, 17)


def test_worked_example_decode_slots_and_positions():
    ones = ints(1, 1)
    assert slot_mapping(EXAMPLE_TABLE, EXAMPLE_LENS, ones, 16).tolist() == [119, 96]
    assert positions(EXAMPLE_LENS, ones).tolist() == [39, 16]
    assert query_start_loc(ones).tolist() == [0, 1, 2]


def test_worked_example_compressed_rows():
    csr = block_csr(EXAMPLE_LENS, 16, 8)
    assert csr.kv_indptr.tolist() == [0, 3, 5]
    assert csr.kv_last_page_len.tolist() == [8, 1]


def test_worked_example_pages_of_one_token():
    starts = query_start_loc(EXAMPLE_LENS)
    slots = slot_mapping(EXAMPLE_TABLE, EXAMPLE_LENS, EXAMPLE_LENS, 16, dtype=torch.int32)
    assert starts.tolist() == [0, 40, 57]
    first = [*range(80, 96), *range(32, 48), *range(112, 120)]
    assert slots.tolist() == [*first, *range(16, 32), 96]
    csr = block_csr(EXAMPLE_LENS, 1, 1000)
    assert csr.kv_indptr.tolist() == [0, 40, 57]
    assert csr.kv_last_page_len.tolist() == [1, 1]


# Requirements


def test_r28_nothing_of_the_size_of_the_pool_is_allocated():
    lens = torch.full((4,), 64, dtype=torch.int32)
    before = torch.ops.opreplay.block_table.default(lens, 16, 100)[0]
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        block_table(lens, 16, 2**30)
    allocated = [e.self_cpu_memory_usage for e in profile.events() if e.self_cpu_memory_usage > 0]
    assert sum(allocated) < 4096
    assert before.shape == (4, 4)


@pytest.mark.parametrize("order", ["permuted", "contiguous", "strided"])
@pytest.mark.parametrize("num_blocks", [64, 1000, 4096, 4097, 9999, 1 << 20])
def test_r29_blocks_are_distinct_across_the_batch(order, num_blocks):
    pool = min(num_blocks, 20_000)
    lens = torch.full((pool // 64,), 64 * 4, dtype=torch.int32)
    ids = block_table(lens, 4, num_blocks, order=order).table.flatten()
    assert ids.unique().numel() == ids.numel()
    assert int(ids.min()) >= 0
    assert int(ids.max()) < num_blocks


def test_r29_a_whole_pool_is_a_permutation_of_it():
    ids = block_table(ints(10_007), 1, 10_008, reserve_block_zero=True).table[0]
    assert ids.sort().values.tolist() == list(range(1, 10_008))


def test_the_largest_pool_is_handed_out_in_the_described_order():
    place = permutation(2**30, 5)
    ids = block_table(ints(300), 1, 2**30, seed=5).table[0]
    assert ids.tolist() == [place(n) for n in range(300)]


def test_blocks_that_follow_each_other_lie_at_random_distances():
    pool = 100_003
    steps = block_table(ints(pool), 1, pool).table[0].diff() % pool
    # Random numbers below n, n of them, take 1 - 1/e of the values.
    assert steps.unique().numel() / pool == pytest.approx(1 - math.exp(-1), abs=0.01)


def test_r29_an_exhausted_pool_is_an_error_that_says_by_how_much():
    with pytest.raises(ValueError, match=r"take 5 blocks at least, the pool has 3 to hand out"):
        block_table(EXAMPLE_LENS, 16, 4, reserve_block_zero=True)


def test_r29_shortened_lengths_are_reported():
    result = block_table(EXAMPLE_LENS, 16, 4, on_exhausted="shrink_lengths")
    assert result.seq_lens.tolist() == [32, 16]
    stats = result.stats()
    assert stats.exhausted
    assert (stats.blocks_needed, stats.blocks_in_pool, stats.distinct_blocks) == (5, 4, 3)


def test_r29_shared_blocks_are_reported():
    result = block_table(EXAMPLE_LENS, 16, 4, on_exhausted="share")
    assert result.seq_lens.tolist() == [40, 17]
    stats = result.stats()
    assert stats.exhausted
    assert (stats.entries, stats.distinct_blocks) == (5, 4)
    assert stats.pool_used == 1.0


def test_r29_a_shared_prefix_is_full_blocks_before_the_last_token():
    table = block_table(ints(64, 48, 17, 5), 16, 100, shared_prefix_blocks=2).table.tolist()
    assert table[0][:2] == table[1][:2]
    assert table[2][0] == table[0][0]
    own = table[0][2:4] + table[1][2:3] + table[2][1:2] + table[3][:1]
    assert len({*own, *table[0][:2]}) == 7


def test_r30_lengths_are_ragged_by_default():
    lens = seq_lens(1000, high=4096)
    assert lens.unique().numel() > 500
    assert int(lens.min()) >= 1
    assert int(lens.max()) <= 4096
    # The mean of 1,000 uniform draws has a standard error of 37.
    assert abs(float(lens.double().mean()) - 2048.5) < 200


def test_r43_tables_are_the_same_for_any_number_of_threads_and_by_seed():
    lens = seq_lens(700, high=3000, seed=3)

    def built(threads: int, seed: int = 7) -> list[torch.Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            dense = block_table(lens, 16, 1_000_000, width=200, seed=seed)
            csr = block_csr(lens, 16, 1_000_000, seed=seed)
            slots = slot_mapping(dense.table, lens, lens, 16)
        finally:
            torch.set_num_threads(before)
        return [dense.table, csr.kv_indptr, csr.kv_indices, slots]

    one = built(1)
    for threads in (2, 3, 4):
        assert all(torch.equal(a, b) for a, b in zip(one, built(threads), strict=True))
    assert not torch.equal(one[0], built(1, seed=8)[0])


def test_r43_bits_are_fixed_across_releases():
    assert block_table(EXAMPLE_LENS, 16, 8).table.tolist() == [[0, 7, 6], [2, 3, 0]]
    assert seq_lens(4, high=100, seed=1).tolist() == [65, 71, 7, 88]


# Sequence lengths


def test_constant_lengths_are_all_high():
    assert seq_lens(3, kind="constant", high=70).tolist() == [70, 70, 70]


def test_uniform_lengths_cover_both_bounds():
    lens = seq_lens(2000, low=5, high=9)
    assert lens.unique().tolist() == [5, 6, 7, 8, 9]


def test_zipf_lengths_follow_the_exponent():
    count = 200_000
    lens = seq_lens(count, kind="zipf", s=1.2, high=1000)
    weights = torch.arange(1, 1001, dtype=torch.float64) ** -1.2
    expected = weights / weights.sum() * count
    got = torch.bincount(lens, minlength=1001)[1:].double()
    for low, high in [
        (0, 1),
        (1, 2),
        (2, 4),
        (4, 10),
        (10, 32),
        (32, 100),
        (100, 300),
        (300, 1000),
    ]:
        share = float(expected[low:high].sum())
        assert abs(float(got[low:high].sum()) - share) < 5 * math.sqrt(share) + 0.003 * share


def test_zipf_starts_at_low():
    lens = seq_lens(5000, kind="zipf", s=1.0, low=50, high=60)
    assert int(lens.min()) == 50
    assert int(lens.max()) == 60


def test_a_huge_range_has_a_bucket_for_each_step():
    lens = seq_lens(1000, kind="zipf", s=0.0, high=2**31 - 1)
    assert int(lens.min()) >= 1
    assert float(lens.double().mean()) > 2**29


def test_one_sequence_has_the_maximum():
    lens = seq_lens(50, high=1000, maximum=700)
    assert int(lens.max()) == 700
    assert int((lens == 700).sum()) >= 1


@given(
    num_seqs=st.integers(1, 60),
    mean=st.integers(2, 500),
    kind=st.sampled_from(["uniform", "constant"]),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=100, deadline=None)
def test_a_total_is_met_exactly(num_seqs, mean, kind, seed):
    total = num_seqs * mean + 1
    lens = seq_lens(num_seqs, kind=kind, high=2000, total=total, seed=seed)
    assert int(lens.sum()) == total
    assert int(lens.min()) >= 1
    spread = 1 if kind == "constant" else mean + 3
    assert int(lens.max()) - int(lens.min()) <= spread


@given(lens=st.lists(st.integers(1, 800), min_size=3, max_size=60), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=100, deadline=None)
def test_totals_of_real_lengths_are_met(lens, seed):
    total, squares, longest = sum(lens), sum(n * n for n in lens), max(lens)
    got = seq_lens(
        len(lens), high=1000, total=total, total_squares=squares, maximum=longest, seed=seed
    ).tolist()
    assert sum(got) == total
    assert max(got) == longest
    assert min(got) >= 1
    # One step of the slope moves a few tokens between two lengths.
    assert abs(sum(n * n for n in got) - squares) <= 2 * longest * len(lens)


def test_totals_of_a_recorded_step_are_met():
    # execute_context_9(sq8155 sqsq7475785) of a vLLM trace.
    lens = seq_lens(9, high=4096, total=8155, total_squares=7475785, seed=1)
    assert int(lens.sum()) == 8155
    assert abs(int((lens.long() ** 2).sum()) - 7475785) < 2000


def test_impossible_totals_are_refused_with_the_limits():
    with pytest.raises(ValueError, match=r"total >= 5, got 4"):
        seq_lens(5, high=10, total=4)
    with pytest.raises(ValueError, match=r"total <= 50, got 51"):
        seq_lens(5, high=10, total=51)
    with pytest.raises(ValueError, match=r"sum 20 can have .* 80 to 152, got 200"):
        seq_lens(5, high=10, total=20, total_squares=200)
    with pytest.raises(ValueError, match="total_squares 200 alone"):
        seq_lens(5, high=10, total_squares=200)
    with pytest.raises(ValueError, match=r"kind zipf .* total 20"):
        seq_lens(5, kind="zipf", high=10, total=20)
    with pytest.raises(ValueError, match="maximum <= 10, got 11"):
        seq_lens(5, high=10, maximum=11)


def test_one_sequence_can_be_the_total_and_the_maximum():
    assert seq_lens(1, high=10, total=7, maximum=7).tolist() == [7]
    assert seq_lens(1, high=10, total=7).tolist() == [7]


def test_given_lengths_are_checked_and_copied():
    given_lens = torch.tensor([3, 5])
    lens = seq_lens(2, kind=given_lens, high=5)
    assert lens.dtype == torch.int32
    assert lens.tolist() == [3, 5]
    out = ints(0, 0)
    assert seq_lens(2, kind=given_lens, high=5, out=out) is out
    assert out.tolist() == [3, 5]
    assert seq_lens(0, kind=torch.empty(0, dtype=torch.int64), high=5).tolist() == []
    with pytest.raises(ValueError, match=r"lengths in \[1, 4\], got lengths from 3 to 5"):
        seq_lens(2, kind=given_lens, high=4)
    with pytest.raises(ValueError, match="expected 3 lengths"):
        seq_lens(3, kind=given_lens, high=5)
    with pytest.raises(TypeError, match=r"float32"):
        seq_lens(2, kind=torch.ones(2), high=5)


def test_lengths_fill_a_recorded_buffer():
    out = ints(0, 0, 0)
    assert seq_lens(3, high=100, seed=5, out=out) is out
    assert torch.equal(out, seq_lens(3, high=100, seed=5))
    with pytest.raises(ValueError, match="expected out of 4 entries"):
        seq_lens(4, high=100, out=out)


# Buffers and bad requests


def test_recorded_buffers_are_filled_in_place():
    table, lens = torch.full((2, 5), -1, dtype=torch.int32), ints(-1, -1)
    result = block_table(EXAMPLE_LENS, 16, 8, out=(table, lens))
    assert result.table is table
    assert torch.equal(table, block_table(EXAMPLE_LENS, 16, 8, width=5).table)
    assert lens.tolist() == [40, 17]

    expected = block_csr(EXAMPLE_LENS, 16, 8, length=9)
    buffers = (ints(0, 0, 0), torch.full((9,), -1, dtype=torch.int32), ints(0, 0), ints(0, 0))
    csr = block_csr(EXAMPLE_LENS, 16, 8, out=buffers)
    assert csr.kv_indices is buffers[1]
    assert torch.equal(csr.kv_indices, expected.kv_indices)
    assert torch.equal(csr.kv_indptr, expected.kv_indptr)
    assert torch.equal(csr.kv_last_page_len, expected.kv_last_page_len)

    ones, out = ints(1, 1), torch.full((4,), 9)
    assert slot_mapping(EXAMPLE_TABLE, EXAMPLE_LENS, ones, 16, out=out) is out
    assert out.tolist() == [119, 96, -1, -1]
    assert positions(EXAMPLE_LENS, ones, out=out).tolist() == [39, 16, 0, 0]
    assert query_start_loc(ones, out=ints(9, 9, 9)).tolist() == [0, 1, 2]
    tokens = torch.full((2, 40), -1, dtype=torch.int32)
    assert req_to_token(EXAMPLE_TABLE, EXAMPLE_LENS, 16, out=tokens)[1, 16] == 96


def test_a_padding_row_has_no_blocks():
    csr = block_csr(ints(20, 0), 16, 8)
    assert csr.kv_indptr.tolist() == [0, 2, 2]
    assert csr.kv_last_page_len.tolist() == [4, 16]
    assert block_table(ints(20, 0), 16, 8).table[1].tolist() == [0, 0]


def test_an_empty_batch_is_an_empty_table():
    empty = ints()
    assert block_table(empty, 16, 8).table.shape == (0, 0)
    assert block_csr(empty, 16, 8).kv_indptr.tolist() == [0]
    assert query_start_loc(empty).tolist() == [0]
    stats = block_table(empty, 16, 8).stats()
    assert (stats.tokens, stats.longest, stats.mean_length) == (0, 0, 0.0)


def test_stats_count_what_is_there():
    stats = block_csr(EXAMPLE_LENS, 16, 8, length=20, reserve_block_zero=True).stats()
    assert stats == block.BlockStats(
        num_seqs=2,
        tokens=57,
        mean_length=28.5,
        longest=40,
        entries=5,
        distinct_blocks=5,
        blocks_needed=5,
        blocks_in_pool=7,
    )
    assert not stats.exhausted


LONG = torch.tensor([1, 2])
BAD_REQUESTS = {
    "negative length": (
        lambda: block_table(ints(3, -2), 16, 8),
        ValueError,
        "got -2 for sequence 1",
    ),
    "row too wide": (
        lambda: block_table(EXAMPLE_LENS, 16, 8, width=2),
        ValueError,
        "sequence 0 takes 3 blocks, the table's width is 2",
    ),
    "indices too short": (
        lambda: block_csr(EXAMPLE_LENS, 16, 8, length=4),
        ValueError,
        "pages of all sequences are 5, kv_indices holds 4",
    ),
    "block size": (lambda: block_table(EXAMPLE_LENS, 0, 8), ValueError, "block_size >= 1, got 0"),
    "no pool": (
        lambda: block_table(EXAMPLE_LENS, 16, 1, reserve_block_zero=True),
        ValueError,
        "num_blocks >= 2, got 1",
    ),
    "huge pool": (
        lambda: block_table(EXAMPLE_LENS, 16, 2**30 + 1),
        ValueError,
        "num_blocks <= 1073741824, got 1073741825",
    ),
    "order": (lambda: block_table(EXAMPLE_LENS, 16, 8, order="sorted"), ValueError, "got sorted"),
    "policy": (
        lambda: block_table(EXAMPLE_LENS, 16, 8, on_exhausted="stop"),
        ValueError,
        "shrink_lengths or share, got stop",
    ),
    "prefix": (
        lambda: block_table(EXAMPLE_LENS, 16, 8, shared_prefix_blocks=-1),
        ValueError,
        "shared_prefix_blocks >= 0, got -1",
    ),
    "width": (lambda: block_table(EXAMPLE_LENS, 16, 8, width=-1), ValueError, "width >= 0, got -1"),
    "dtype": (lambda: block_table(LONG, 16, 8), TypeError, "seq_lens of dtype Int, got Long"),
    "dimension": (
        lambda: block_table(EXAMPLE_TABLE, 16, 8),
        ValueError,
        r"seq_lens of sizes \[B\], got \[2, 3\]",
    ),
    "device": (lambda: seq_lens(3, high=4, device="meta"), ValueError, "got device meta"),
    "kind": (lambda: seq_lens(3, kind="normal", high=4), ValueError, "got normal"),
    "low": (lambda: seq_lens(3, low=0, high=4), ValueError, "low >= 1, got 0"),
    "high": (lambda: seq_lens(3, low=5, high=4), ValueError, "high >= 5, got 4"),
    "query too long": (
        lambda: positions(ints(3, 4), ints(3, 5)),
        ValueError,
        "got 5 of 4 tokens for sequence 1",
    ),
    "negative query": (lambda: query_start_loc(ints(2, -1)), ValueError, "got -1 for sequence 1"),
    "too many tokens": (
        lambda: positions(ints(3, 4), ints(3, 4), total=6),
        ValueError,
        "queries have 7 tokens, the output holds 6",
    ),
    "beyond the table": (
        lambda: slot_mapping(EXAMPLE_TABLE, ints(40, 49), ints(1, 1), 16),
        ValueError,
        "sequence 1 has 49 tokens, its row holds 48",
    ),
    "beyond the context": (
        lambda: req_to_token(EXAMPLE_TABLE, EXAMPLE_LENS, 16, context=39),
        ValueError,
        "sequence 0 has 40 tokens, its row holds 39",
    ),
    "different batches": (
        lambda: positions(ints(3, 4), ints(1)),
        ValueError,
        "as many query_lens as seq_lens, got 1 and 2",
    ),
    "index dtype": (
        lambda: positions(ints(3), ints(1), dtype=torch.int16),
        TypeError,
        "values of dtype Int, got Short",
    ),
    "table rows": (
        lambda: slot_mapping(EXAMPLE_TABLE, ints(3), ints(1), 16),
        ValueError,
        r"block_table of sizes \[1, W\], got \[2, 3\]",
    ),
    "buffer sizes": (
        lambda: block_table(EXAMPLE_LENS, 16, 8, out=(EXAMPLE_TABLE.clone(), ints(1))),
        ValueError,
        r"seq_lens of the result of sizes \[2\], got \[1\]",
    ),
}


@pytest.mark.parametrize("case", BAD_REQUESTS, ids=str)
def test_a_bad_request_names_the_value_and_the_limit(case):
    call, error, message = BAD_REQUESTS[case]
    with pytest.raises(error, match=message):
        call()


def test_a_status_read_back_from_a_device_raises_the_same_error():
    block_status = ints(3, -1, 5, 3, 5, 3)
    with pytest.raises(ValueError, match="take 5 blocks at least, the pool has 3"):
        torch.ops.opreplay.check_block_status(block_status)
    with pytest.raises(ValueError, match="queries have 7 tokens, the output holds 6"):
        torch.ops.opreplay.check_token_status(ints(3, -1, 7, 6))
    torch.ops.opreplay.check_block_status(ints(0, -1, 0, 0, 5, 8))
    torch.ops.opreplay.check_token_status(ints(0, -1, 0, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("num_seqs", [1, 64, 3000])
@pytest.mark.parametrize("order", ["permuted", "contiguous", "strided"])
def test_r43_device_and_cpu_build_the_same_bits(num_seqs, order):
    def built(device: str) -> list[torch.Tensor]:
        lens = seq_lens(num_seqs, high=900, seed=2, device=device)
        dense = block_table(lens, 16, 200_000, order=order, shared_prefix_blocks=2, width=60)
        csr = block_csr(lens, 16, 200_000, order=order, length=180_000)
        slots = slot_mapping(dense.table, lens, lens, 16)
        tokens = req_to_token(dense.table, lens, 16)
        return [
            *(lens, dense.table, dense.status, csr.kv_indptr, csr.kv_indices),
            *(csr.kv_last_page_len, slots, tokens, positions(lens, lens), query_start_loc(lens)),
        ]

    pairs = zip(built("cpu"), built("cuda"), strict=True)
    assert all(torch.equal(here, there.cpu()) for here, there in pairs)


@pytest.mark.gpu
def test_lengths_that_do_not_fit_raise_on_a_device_too():
    with pytest.raises(ValueError, match="take 5 blocks at least, the pool has 4"):
        block_table(EXAMPLE_LENS.cuda(), 16, 4, width=3)
