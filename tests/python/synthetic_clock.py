"""A machine that does not exist: its clock drifts, stutters and is disturbed, and costs no time."""

from __future__ import annotations

import math

import numpy as np
from made_reports import stat, timing

from opreplay.outcome import Outcome
from opreplay.plan import PlannedCall
from opreplay.rounds import take_in_turn
from opreplay.trace import RecordedTimes, Skipped

SAMPLES = 15


def planned(op):
    """A recorded call of an operator; nothing about it can run."""
    return PlannedCall(
        op=op, signature=op, step=None, batch=None, parent=None, leaf=True, count=1,
        host=RecordedTimes(1.0, 1.0, 1.0), device=None, kernels=(), in_graph=False,
        outcome=Skipped("failed", "never run"),
    )  # fmt: skip


class SyntheticMachine:
    """Takes samples of calls whose true times are known, with the noise of a busy machine."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._turns = 0
        self._state = 0.0
        self._disturbed = 0
        self.slow = {}
        """Factor on the time of side B, by operator; 1 where none is named."""

    def play(self, job, number):
        """One round of a call, as a contest plays it."""
        factor = self.slow.get(job.op, 1.0)
        base = 500 + 100 * (sum(map(ord, job.op)) % 97)
        return take_in_turn(
            lambda: self._outcome(base), lambda: self._outcome(base * factor), number=number
        )

    def _outcome(self, ns):
        rng = self._rng
        self._turns += 1
        # The clock heats up, a neighbour comes and goes, and each turn begins with other caches.
        drift = 0.1 * self._turns / 20_000
        self._state = 0.98 * self._state + rng.normal(0, 0.004)
        if self._disturbed == 0 and rng.random() < 0.001:
            self._disturbed = int(rng.integers(5, 60))
        self._disturbed = max(0, self._disturbed - 1)
        level = ns * math.exp(
            drift + self._state + 0.3 * (self._disturbed > 0) + rng.normal(0, 0.008)
        )
        samples = level * (1 + rng.exponential(0.02, SAMPLES))  # skewed
        samples[rng.random(SAMPLES) < 0.05] *= rng.uniform(1.5, 20)  # outliers
        return Outcome(timing=timing(stat(median=sorted(samples.tolist())[SAMPLES // 2])))
