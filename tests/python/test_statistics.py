"""Statistics: probabilities by counting, estimates by hand, error rates on a synthetic clock."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from made_reports import stat

from opreplay.statistics import (
    Estimate,
    compare_paired,
    compare_samples,
    compare_stats,
    give_verdicts,
    widened,
)


def counted_signed_ranks(differences):
    """Chance of at least so large a sum of positive ranks, over all choices of signs."""
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1
    seen = ranks[np.array(differences) > 0].sum()
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(ranks))
    ]
    return np.mean([total >= seen for total in sums])


def counted_rank_sums(a, b):
    """Chance of so many pairs with the second larger, over all ways to deal the values out."""
    values = [*a, *b]
    seen = sum(y > x for x in a for y in b)
    counts = []
    for chosen in itertools.combinations(range(len(values)), len(b)):
        theirs = [values[i] for i in chosen]
        ours = [values[i] for i in range(len(values)) if i not in chosen]
        counts.append(sum(y > x for x in ours for y in theirs))
    return np.mean([count >= seen for count in counts])


def test_probability_of_pairs_is_that_of_counting_signs():
    differences = [0.3, -0.1, 0.7, 0.25, -0.5, 0.9, 0.45]
    estimate = compare_paired([1.0] * 7, np.exp(differences), tolerance=1e-9)

    assert estimate.p_different == pytest.approx(2 * counted_signed_ranks(differences))


def test_probability_of_samples_is_that_of_dealing_them_out():
    a, b = [1.0, 2.0, 3.5, 2.2], [2.1, 4.0, 3.6, 5.0, 2.9]
    estimate = compare_samples(a, b, tolerance=1e-9)

    assert estimate.p_different == pytest.approx(2 * counted_rank_sums(a, b))


def test_the_ratio_is_the_median_of_the_averages_of_pairs():
    # Logarithms 1, 2, 6 have the Walsh averages 1, 1.5, 2, 3.5, 4, 6: median 2.75.
    estimate = compare_paired([1.0] * 3, np.exp([1.0, 2.0, 6.0]), tolerance=0.05)

    assert math.log(estimate.ratio) == pytest.approx(2.75)
    assert (estimate.low, estimate.high) == (0.0, math.inf)  # three pairs can't refuse anything


def test_the_ratio_of_two_runs_is_the_median_of_all_ratios():
    estimate = compare_samples([1.0, 2.0], [3.0, 8.0], tolerance=0.05)

    assert estimate.ratio == pytest.approx(math.sqrt(3.0 * 4.0))  # of 1.5, 3, 4, 8


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        a, b = rng.exponential(1, (2, 20)) + 1
        estimate = compare_samples(a, 1.5 * b, tolerance=0.05)
        held += estimate.low <= 1.5 <= estimate.high

    assert 0.92 <= held / 400 <= 0.99


def test_without_samples_quartiles_stand_in():
    # Standard error of a median: 1.2533 sigma / sqrt(n); here 1 % of each median.
    a = stat(median=100.0, iqr=100 * 0.01 * 1.349 / 1.2533 * 10, samples=100)
    b = stat(median=110.0, iqr=110 * 0.01 * 1.349 / 1.2533 * 10, samples=100)

    estimate = compare_stats(a, b, tolerance=0.05)

    assert estimate.ratio == pytest.approx(1.1)
    assert math.log(estimate.high / 1.1) == pytest.approx(1.96 * math.sqrt(2) * 0.01, rel=1e-3)


def test_verdicts_follow_benjamini_and_hochberg():
    def row(ratio, p_different, p_same):
        return Estimate(ratio, ratio, ratio, p_different, p_same)

    # Of four, the limits are 0.0125, 0.025, 0.0375, 0.05: 0.02 passes, for it is second.
    rows = [
        row(1.2, 0.001, 1), row(0.8, 0.02, 1), row(1.1, 0.04, 1), row(1.0, 1, 0.001),
    ]  # fmt: skip

    assert give_verdicts(rows) == ["slower", "faster", "unresolved", "same"]
    assert give_verdicts([]) == []


@pytest.mark.parametrize("compare", [compare_paired, compare_samples])
def test_single_times_are_refused(compare):
    with pytest.raises(ValueError, match="two or more"):
        compare([1.0], [1.0], tolerance=0.05)


def test_what_two_runs_differ_by_is_no_verdict_on_a_row():
    rng = np.random.default_rng(2)

    def row(ratio):
        level = ratio * math.exp(rng.normal(0, 0.1))  # each run lays its pages out anew
        a, b = rng.normal(1, 0.01, (2, 40))
        return compare_samples(a, level * b, tolerance=0.05)

    alone = [row(1.0) for _ in range(200)]
    wider, between = widened([*alone, row(3.0)], tolerance=0.05)

    assert between == pytest.approx(0.1, rel=0.3)
    assert Counter(give_verdicts(alone))["unresolved"] < 100  # as if a third of them had changed
    assert Counter(give_verdicts(wider)[:-1]).keys() <= {"unresolved", "same"}
    assert give_verdicts(wider)[-1] == "slower"


def test_few_rows_say_nothing_of_the_runs():
    rows = [compare_samples([1.0, 2.0], [1.0, 2.0], tolerance=0.05)] * 7

    assert widened(rows, tolerance=0.05) == (rows, None)
