"""Two sides in turn: jobs, and what plays a round of one, come in; the rounds of each go out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from opreplay.outcome import Outcome
from opreplay.report.comparison import OutputCheck
from opreplay.stat import Stat, Timing

__all__ = ["Round", "run_rounds", "summary", "take_in_turn"]


J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one call on both sides, once each."""

    a: Outcome | None
    """On side A; None if it never had its turn, because the other one failed."""
    b: Outcome | None
    """On side B."""
    outputs: OutputCheck | None = None
    """Whether both sides computed the same; None where that was not looked at."""

    @property
    def failed(self) -> bool:
        """True if a side has no time, so that further rounds are of no use."""
        return any(side is None or side.reason is not None for side in (self.a, self.b))


def take_in_turn(
    take_a: Callable[[], Outcome], take_b: Callable[[], Outcome], *, number: int
) -> Round:
    """Times both sides one after the other; which one begins changes from round to round.

    Neither a drift of the machine nor the heat that a side leaves behind then falls to one of them.
    """
    taken: dict[str, Outcome] = {}
    sides = [("a", take_a), ("b", take_b)]
    for side, take in sides if number % 2 == 0 else reversed(sides):
        taken[side] = take()
        if taken[side].reason is not None:
            break
    return Round(taken.get("a"), taken.get("b"))


def run_rounds(
    jobs: Sequence[J],
    play: Callable[[J, int], Round],
    *,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Round]]:
    """Plays every job once in each round, so that the rounds of one job lie far apart.

    What disturbs the machine for a second then spoils one round of some jobs, and not all rounds of
    one. A job that failed is played no more.

    Args:
        jobs: What is to be timed.
        play: Plays one round of a job; is told the number of the round.
        rounds: How many.
        progress: Called with the number of rounds played and of all.
    """
    played: list[list[Round]] = [[] for _ in jobs]
    total = rounds * len(jobs)
    for number in range(rounds):
        for place, job in enumerate(jobs):
            if not any(one.failed for one in played[place]):
                played[place].append(play(job, number))
            progress(number * len(jobs) + place + 1, total)
    return played


def summary(outcomes: Sequence[Outcome]) -> Outcome:
    """Puts the rounds of one side together; the samples of the sum are the rounds' medians.

    Raises:
        ValueError: There is no round.
    """
    if not outcomes:
        raise ValueError("a side needs at least one round")
    last = outcomes[-1]
    if last.timing is None:
        return last
    timings = [outcome.timing for outcome in outcomes if outcome.timing is not None]
    return replace(last, timing=_over_rounds(timings))


def _over_rounds(timings: Sequence[Timing]) -> Timing:
    combined: dict[str, Any] = {
        one.name: _stat_of([getattr(timing, one.name) for timing in timings])
        for one in fields(Timing)
        if isinstance(getattr(timings[-1], one.name), Stat)
    }
    return replace(timings[-1], **combined)


def _stat_of(stats: Sequence[Stat]) -> Stat:
    medians = [stat.median for stat in stats]
    p5, p25, median, p75, p95 = (float(q) for q in np.quantile(medians, _QUANTILES))
    return replace(
        stats[-1],
        median=median,
        mean=float(np.mean([stat.mean for stat in stats])),
        min=min(stat.min for stat in stats),
        p5=p5,
        p95=p95,
        iqr=p75 - p25,
        samples=sum(stat.samples for stat in stats),
        discarded=sum(stat.discarded for stat in stats),
        raw=medians,
    )


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
