import pytest

from opreplay.recipes.lengths import split, starts


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
