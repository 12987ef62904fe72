"""Which calls are asked for: a timeline and the user's choice come in, rows go out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

from opreplay.trace.events import BoolArray, Events, IdArray
from opreplay.trace.nesting import NOTHING
from opreplay.trace.timeline import Timeline

__all__ = ["LEVELS", "Level", "select_rows"]

Level = Literal["all", "outermost", "leaf"]
"""Calls of a nest: every one, those inside no other operator, those with no operator inside."""

LEVELS: tuple[Level, ...] = ("all", "outermost", "leaf")


def select_rows(
    timeline: Timeline,
    *,
    ops: Iterable[str] = (),
    match: str | None = None,
    scope: str | None = None,
    level: Level = "all",
) -> IdArray:
    """Returns the rows of the operators that fit every choice made, by start time.

    Args:
        timeline: The trace's operators.
        ops: Exact names; none means every name.
        match: Regular expression that occurs in the name.
        scope: Annotation that encloses the call: its whole name, or else a part of it.
        level: Place in the nest.

    Raises:
        ValueError: `match` is no regular expression, no annotation fits `scope`, or `level` is
            unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}, expected one of {', '.join(LEVELS)}")
    selected = _by_name(timeline.lanes.op, ops, match)
    if scope is not None:
        selected &= _inside(timeline.lanes.op, timeline.annotations, scope)
    if level == "outermost":
        selected &= timeline.parent == NOTHING
    elif level == "leaf":
        selected &= timeline.leaf
    rows = np.flatnonzero(selected)
    return rows[np.argsort(timeline.lanes.op.start[rows], kind="stable")]


def _by_name(events: Events, ops: Iterable[str], match: str | None) -> BoolArray:
    exact = frozenset(ops)
    try:
        pattern = re.compile(match or "")
    except re.error as error:
        raise ValueError(f"{match!r} is not a regular expression ({error})") from error
    wanted = [
        (not exact or name in exact) and pattern.search(name) is not None for name in events.names()
    ]
    return np.array(wanted, bool)[events.distinct]


def _inside(ops: Events, annotations: Events, scope: str) -> BoolArray:
    names = annotations.names()
    present = {names[distinct] for distinct in np.unique(annotations.distinct)}
    wanted = {scope} & present or {name for name in present if scope in name}
    if not wanted:
        some = ", ".join(sorted(present)[:5]) or "none"
        raise ValueError(f"no annotation is named {scope!r}; the trace has: {some}")
    rows = np.flatnonzero(np.array([name in wanted for name in names])[annotations.distinct])
    rows = rows[np.argsort(annotations.start[rows], kind="stable")]
    # Ends so far, so that a long annotation covers what starts after a short one inside it.
    reach = np.maximum.accumulate(annotations.end[rows])
    at = np.searchsorted(annotations.start[rows], ops.start, side="right") - 1
    return (at >= 0) & (ops.start <= reach[np.maximum(at, 0)])
