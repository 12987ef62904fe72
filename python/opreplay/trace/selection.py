"""Which calls are asked for: a timeline and the user's choice come in, rows go out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from opreplay.trace.events import BoolArray, Events, IdArray
from opreplay.trace.nesting import NOTHING
from opreplay.trace.timeline import Timeline

__all__ = ["LEVELS", "STEPS", "Level", "Selection", "Steps", "select_rows"]

Level = Literal["all", "outermost", "leaf"]
"""Calls of a nest: every one, those inside no other operator, those with no operator inside."""

LEVELS: tuple[Level, ...] = ("all", "outermost", "leaf")

Steps = Literal["median", "all"]
"""Steps that a call is run for, where its values depend on the step: for each phase the one with
the median recorded time, or every step with another batch."""

STEPS: tuple[Steps, ...] = ("median", "all")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which calls of a trace or plan are asked for."""

    ops: tuple[str, ...] = ()
    """Exact operator names; none means every name."""
    match: str | None = None
    """Regular expression that occurs in the name."""
    scope: str | None = None
    """Annotation that encloses the call: its whole name, or else a part of it."""
    level: Level = "all"
    """Place in the nest of operators."""
    steps: Steps = "median"
    """Steps to run of a trace's calls; a plan holds those that were chosen for it."""
    top: int | None = None
    """Keeps so many rows with the most recorded device time, or host time without any."""
    limit: int | None = None
    """Keeps so many of the rows that are left."""

    def __post_init__(self) -> None:
        """Checks the pattern, the choices and the counts."""
        try:
            re.compile(self.match or "")
        except re.error as error:
            raise ValueError(f"{self.match!r} is not a regular expression ({error})") from error
        if self.level not in LEVELS:
            raise ValueError(f"level is {self.level!r}, expected one of {', '.join(LEVELS)}")
        if self.steps not in STEPS:
            raise ValueError(f"steps is {self.steps!r}, expected one of {', '.join(STEPS)}")
        for name in ("top", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def fits(self, op: str) -> bool:
        """Tells whether an operator's name is asked for."""
        return (not self.ops or op in self.ops) and bool(re.search(self.match or "", op))


def select_rows(timeline: Timeline, selection: Selection) -> IdArray:
    """Returns the rows of the operators that fit every choice made, by start time.

    Args:
        timeline: The trace's operators.
        selection: The choices; `top` and `limit` count groups and are left to the caller.

    Raises:
        ValueError: No annotation fits the scope.
    """
    names = timeline.lanes.op.examples.names
    fits = {name: selection.fits(name) for name in set(names)}
    selected = timeline.lanes.op.where(fits[name] for name in names)
    if selection.scope is not None:
        selected &= _inside(timeline.lanes.op, timeline.annotations, selection.scope)
    if selection.level == "outermost":
        selected &= timeline.parent == NOTHING
    elif selection.level == "leaf":
        selected &= timeline.leaf
    rows = np.flatnonzero(selected)
    return rows[np.argsort(timeline.lanes.op.start[rows], kind="stable")]


def _inside(ops: Events, annotations: Events, scope: str) -> BoolArray:
    names = annotations.examples.names
    present = {names[distinct] for distinct in np.unique(annotations.distinct)}
    wanted = {scope} & present or {name for name in present if scope in name}
    if not wanted:
        some = ", ".join(sorted(present)[:5]) or "none"
        raise ValueError(f"no annotation is named {scope!r}; the trace has: {some}")
    rows = np.flatnonzero(annotations.where(name in wanted for name in names))
    rows = rows[np.argsort(annotations.start[rows], kind="stable")]
    # Ends so far, so that a long annotation covers what starts after a short one inside it.
    reach = np.maximum.accumulate(annotations.end[rows])
    at = np.searchsorted(annotations.start[rows], ops.start, side="right") - 1
    return (at >= 0) & (ops.start <= reach[np.maximum(at, 0)])
