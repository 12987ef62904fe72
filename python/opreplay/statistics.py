"""Compares two sides: their times come in; a ratio, its interval and a verdict go out.

Rank tests on logarithms: no distribution is assumed, an outlier counts as one rank, and every
probability is exact. The ratio is the Hodges-Lehmann estimate. Samples that follow one another
share the noise of their time, so that they are summarised by the medians of blocks first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from opreplay.stat import Stat

__all__ = [
    "FALSE_DISCOVERY_RATE",
    "VERDICTS",
    "Estimate",
    "Verdict",
    "compare_paired",
    "compare_samples",
    "compare_stats",
    "give_verdicts",
    "widened",
]

Verdict = Literal["same", "faster", "slower", "unresolved"]

VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "unresolved", "same")

FALSE_DISCOVERY_RATE = 0.05
"""Expected share of wrong verdicts among those given."""

_BLOCKS = 20
_LEVEL = 0.95
_NORMAL_REACH = 1.959964  # of the interval that holds so much, in standard errors
_LEAST_ROWS = 8
"""Fewer rows than this say nothing of what two runs differ by."""
_LEAST = 2
"""Fewer medians of blocks than this say nothing of their spread."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How the times of side B stand to those of side A."""

    ratio: float
    """Time of B over time of A."""
    low: float
    """Lower end of the 95 % confidence interval of the ratio."""
    high: float
    """Upper end."""
    p_different: float
    """Probability of such times if the ratio were within the tolerance of 1."""
    p_same: float
    """Probability of such times if the ratio were outside of it."""


def compare_paired(a: Sequence[float], b: Sequence[float], *, tolerance: float) -> Estimate:
    """Compares times taken in turn, each of `a` with its neighbour in `b` (signed ranks).

    Args:
        a: One time of each round, of side A.
        b: One time of each round, of side B, in the same order and unit.
        tolerance: Ratios within 1 + tolerance and its inverse count as same.

    Raises:
        ValueError: The sides differ in length, or hold fewer than two times.
    """
    if len(a) != len(b) or len(a) < _LEAST:
        raise ValueError(f"paired times need two or more pairs, got {len(a)} and {len(b)}")
    differences = _logarithms(b) - _logarithms(a)
    first, second = np.triu_indices(len(differences))
    pairs = (differences[first] + differences[second]) / 2
    return _estimate(pairs, _signed_rank_tail(len(differences)), tolerance)


def compare_samples(a: Sequence[float], b: Sequence[float], *, tolerance: float) -> Estimate:
    """Compares the samples of two runs, each in the order taken (rank sums of block medians).

    Args:
        a: Samples of side A.
        b: Samples of side B, in the same unit.
        tolerance: Ratios within 1 + tolerance and its inverse count as same.

    Raises:
        ValueError: A side holds fewer than two samples.
    """
    if min(len(a), len(b)) < _LEAST:
        raise ValueError(f"a side needs two or more samples, got {len(a)} and {len(b)}")
    ours, theirs = _block_medians(_logarithms(a)), _block_medians(_logarithms(b))
    pairs = (theirs[:, None] - ours[None, :]).ravel()
    return _estimate(pairs, _rank_sum_tail(len(ours), len(theirs)), tolerance)


def compare_stats(a: Stat, b: Stat, *, tolerance: float) -> Estimate:
    """Compares medians whose samples were not kept, by the error that their quartiles imply.

    The samples are taken to be independent, so that the interval is narrower than the truth where
    the noise of neighbours is shared.
    """
    error = math.hypot(_median_error(a), _median_error(b))
    return _normal_estimate(math.log(b.median / a.median), error, tolerance)


def widened(
    estimates: Sequence[Estimate], *, tolerance: float
) -> tuple[list[Estimate], float | None]:
    """Adds to the error of each row what two runs differ by as a whole.

    Pages, clocks and neighbours are others in each run, which no sample of one run shows. The
    spread of the ratios over the rows does, as long as fewer than half of them have changed: their
    median absolute deviation, less what the rows' own errors explain.

    Returns:
        The estimates, and the standard error between the runs, relative to a time; None where there
        are too few rows to tell, which leaves the estimates as they are.
    """
    known = [one for one in estimates if math.isfinite(one.low) and math.isfinite(one.high)]
    if len(known) < _LEAST_ROWS:
        return list(estimates), None
    centers = np.log([one.ratio for one in known])
    own = np.array([_error(one) for one in known])
    spread = 1.4826 * float(np.median(np.abs(centers - np.median(centers))))
    between = math.sqrt(max(0.0, spread**2 - float(np.median(own)) ** 2))
    return [
        _normal_estimate(math.log(one.ratio), math.hypot(_error(one), between), tolerance)
        for one in estimates
    ], between


def _error(estimate: Estimate) -> float:
    return (math.log(estimate.high) - math.log(estimate.low)) / 2 / _NORMAL_REACH


def _normal_estimate(center: float, error: float, tolerance: float) -> Estimate:
    error = max(error, 1e-12)
    margin = math.log1p(tolerance)
    reach = min(_NORMAL_REACH * error, 700.0)  # of a number that exp can take
    return Estimate(
        ratio=math.exp(center),
        low=math.exp(center - reach),
        high=math.exp(center + reach),
        p_different=min(1.0, 2 * _normal_tail((abs(center) - margin) / error)),
        p_same=_normal_tail((margin - abs(center)) / error),
    )


def give_verdicts(estimates: Sequence[Estimate]) -> list[Verdict]:
    """Gives every row its verdict, with the false discovery rate held over all of them.

    Differences are one family of tests, equalities another (Benjamini and Hochberg, 1995); what
    neither of them settles is unresolved.
    """
    different = _discoveries([estimate.p_different for estimate in estimates])
    same = _discoveries([estimate.p_same for estimate in estimates])
    verdicts: list[Verdict] = []
    for estimate, differs, equals in zip(estimates, different, same, strict=True):
        if differs:
            verdicts.append("slower" if estimate.ratio > 1 else "faster")
        else:
            verdicts.append("same" if equals else "unresolved")
    return verdicts


def _discoveries(probabilities: Sequence[float]) -> list[bool]:
    if not probabilities:
        return []
    ordered = np.sort(probabilities)
    limits = FALSE_DISCOVERY_RATE * np.arange(1, len(ordered) + 1) / len(ordered)
    passed = np.flatnonzero(ordered <= limits)
    limit = ordered[passed[-1]] if passed.size else -1.0
    return [bool(p <= limit) for p in probabilities]


def _estimate(pairs: Floats, tail: Floats, tolerance: float) -> Estimate:
    """Inverts a rank test, whose statistic counts the pairs above the shift that is tested.

    Args:
        pairs: Walsh averages, or differences of all pairs; their median is the estimate.
        tail: Probability of a count of at least so many pairs if the shift is true.
        tolerance: As above.
    """
    ordered = np.sort(pairs)
    # The interval holds every shift that neither one-sided test refuses at half the level.
    accepted = int(np.argmax(tail <= (1 - _LEVEL) / 2)) if tail[-1] <= (1 - _LEVEL) / 2 else None
    low, high = -math.inf, math.inf
    if accepted is not None:
        low, high = ordered[len(ordered) - accepted], ordered[accepted - 1]
    margin = math.log1p(tolerance)

    def above(shift: float) -> float:
        return float(tail[np.count_nonzero(ordered > shift)])

    def below(shift: float) -> float:
        return float(tail[np.count_nonzero(ordered < shift)])

    return Estimate(
        ratio=math.exp(float(np.median(ordered))),
        low=math.exp(low),
        high=math.exp(high),
        p_different=min(1.0, 2 * min(above(margin), below(-margin))),
        p_same=max(below(margin), above(-margin)),
    )


@functools.cache
def _signed_rank_tail(count: int) -> Floats:
    """Probability of at least so many positive Walsh averages of `count` symmetric differences."""
    ways = np.ones(1)
    for rank in range(1, count + 1):
        ways = np.append(ways, np.zeros(rank)) + np.append(np.zeros(rank), ways)
        ways /= 2
    return _tail(ways)


@functools.cache
def _rank_sum_tail(ours: int, theirs: int) -> Floats:
    """Probability of at least so many positive differences between two samples of one source."""
    ways = np.zeros(ours * theirs + 1)
    ways[0] = 1  # the Gaussian binomial coefficient: times (1 - x^(theirs + i)), over (1 - x^i)
    for i in range(1, ours + 1):
        step = theirs + i
        ways[step:] -= ways[:-step].copy()
        for place in range(i, len(ways)):
            ways[place] += ways[place - i]
    return _tail(ways / ways.sum())


def _tail(ways: Floats) -> Floats:
    return np.cumsum(ways[::-1])[::-1]


def _block_medians(values: Floats) -> Floats:
    blocks = np.array_split(values, min(_BLOCKS, len(values)))
    return np.array([np.median(block) for block in blocks])


def _logarithms(times: Sequence[float]) -> Floats:
    return np.log(np.asarray(times, dtype=np.float64))


def _median_error(stat: Stat) -> float:
    """Standard error of a median relative to it, if the samples were normal and independent."""
    sigma = stat.iqr / 1.349
    return 1.2533 * sigma / math.sqrt(stat.samples) / stat.median


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2
