import pytest

from opreplay.recipes.lengths import (
    prompt_lengths,
    split,
    split_below,
    split_with_squares,
    starts,
)


@pytest.mark.parametrize(
    ("total", "parts", "longest", "expected"),
    [
        (10, 4, None, [3, 3, 2, 2]),
        (8, 4, None, [2, 2, 2, 2]),
        (2, 4, None, [1, 1, 0, 0]),
        (0, 3, None, [0, 0, 0]),
        (5, 0, None, []),
        (10, 3, 6, [6, 2, 2]),
        (12, 3, 4, [4, 4, 4]),
        (100, 3, 4, [4, 4, 4]),
        (4, 3, 4, [2, 1, 1]),
    ],
)
def test_a_total_is_split_evenly_around_the_longest_part(total, parts, longest, expected):
    assert split(total, parts, longest=longest) == expected


def test_starts_are_the_running_sum_with_a_leading_zero():
    assert starts([3, 0, 2]) == [0, 3, 3, 5]
    assert starts([]) == [0]


@pytest.mark.parametrize(
    ("total", "bounds", "expected"),
    [(30, [10, 20], [10, 20]), (12, [2, 9, 9], [2, 5, 5]), (9, [3, 3], [3, 3]), (0, [4], [0])],
)
def test_a_total_is_split_evenly_below_bounds(total, bounds, expected):
    assert split_below(total, bounds) == expected


@pytest.mark.parametrize(
    ("parts", "longest"),
    [([7], 7), ([3, 9], 9), ([5, 5, 5, 5], 5), ([1, 900, 17], 900), ([1024] * 8 + [300], 1024),
     ([8000, *[20] * 12], 8000), (list(range(100, 164)), 200), ([], 4)],
    ids=str,
)  # fmt: skip
def test_parts_are_found_that_have_a_sum_and_a_sum_of_squares(parts, longest):
    squares = sum(part * part for part in parts)
    found = split_with_squares(sum(parts), squares, len(parts), longest=longest)
    assert sum(found) == sum(parts)
    assert sum(part * part for part in found) == squares
    assert len(found) == len(parts)
    assert all(1 <= part <= longest for part in found)


@pytest.mark.parametrize(
    ("total", "squares", "parts"),
    [(10, 51, 2), (10, 30, 2), (4, 16, 2), (9, 80, 1), (6, 13, 3)],
)
def test_sums_that_no_parts_have_are_told(total, squares, parts):
    assert split_with_squares(total, squares, parts, longest=100) is None


@pytest.mark.parametrize(
    "prompts",
    [[(10, 10), (20, 20)], [(20, 30), (20, 20)], [(7, 50), (100, 100), (90, 90), (80, 80)],
     [(5, 8), (6, 10), (40, 40), (41, 41), (50, 50)], [(9, 30)]],
    ids=str,
)  # fmt: skip
def test_prompts_are_found_that_have_every_sum_of_an_annotation(prompts):
    def sums(pairs):
        return [
            len(pairs), sum(q for q, _ in pairs), sum(k for _, k in pairs),
            sum(q * q for q, _ in pairs), sum(q * k for q, k in pairs),
        ]  # fmt: skip

    found = prompt_lengths(*sums(prompts), longest=100)
    assert sums(found) == sums(prompts)
    assert all(1 <= q <= k <= 100 for q, k in found)


@pytest.mark.parametrize(
    ("sums", "longest"),
    [((2, 30, 30, 500, 501), 100), ((2, 40, 50, 800, 1000), 25), ((1, 9, 12, 81, 111), 100)],
    ids=str,
)
def test_prompts_that_cannot_be_are_told(sums, longest):
    assert prompt_lengths(*sums, longest=longest) is None
