"""Which event runs inside which: start and end times come in, parents and subtrees go out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opreplay import _scan
from opreplay.trace.events import BoolArray, Events, FloatArray, IdArray

__all__ = ["NOTHING", "ROUNDING_US", "Nest", "nest", "preorder"]

NOTHING = -1
"""Row that stands for no event."""

ROUNDING_US = 1.0
"""How far a child may end after its parent: old traces round times to whole microseconds."""


def preorder(events: Events) -> IdArray:
    """Returns rows by thread and start, an enclosing event before those that it encloses."""
    thread, start = events.thread, events.start
    order = np.lexsort((start, thread))
    # The other keys only tell those apart that start together, and few do.
    together = (np.diff(start[order]) == 0) & (np.diff(thread[order]) == 0)
    places = np.flatnonzero(np.append(together, False) | np.insert(together, 0, False))
    rows = order[places]
    keys = (events.external_id[rows], -events.duration[rows], start[rows], thread[rows])
    order[places] = rows[np.lexsort(keys)]
    return order.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Nest:
    """The tree of events that `preorder` has sorted; a row's subtree is the rows after it."""

    parent: IdArray
    """Row of the innermost enclosing event on the same thread, or `NOTHING`."""
    depth: IdArray
    """Number of enclosing events."""
    size: IdArray
    """Number of rows in the subtree, the event itself included."""
    _thread: IdArray
    _start: FloatArray
    _end: FloatArray

    def innermost(self, thread: IdArray | None, start: FloatArray, end: FloatArray) -> IdArray:
        """Returns for each span of time the row of the innermost event around it, or `NOTHING`.

        Args:
            thread: Thread of each span; None for all threads, of which the event counts that
                started last.
            start: When the event must have started.
            end: Until when it must have run.
        """
        found: IdArray = _scan.innermost(
            (self._thread, self._start, self._end), self.parent, thread, start, end
        )
        return found

    def reduce(self, own: FloatArray, combine: np.ufunc) -> FloatArray:
        """Returns for each row the values of its subtree, combined."""
        total = own.copy()
        for depth in range(int(self.depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero(self.depth == depth)
            combine.at(total, self.parent[rows], total[rows])
        return total

    def nearest(self, wanted: BoolArray) -> IdArray:
        """Returns for each row its innermost ancestor that is `wanted`, or `NOTHING`."""
        row = self.parent.copy()
        active = np.flatnonzero(row != NOTHING)
        while len(active):
            active = active[~wanted[row[active]]]
            row[active] = self.parent[row[active]]
            active = active[row[active] != NOTHING]
        return row


def nest(events: Events) -> Nest:
    """Returns the tree of `events`, which are sorted by `preorder`."""
    end = events.end
    parent, depth, size = _scan.nest(events.thread, events.start, end, tolerance=ROUNDING_US)
    return Nest(
        parent=parent,
        depth=depth,
        size=size,
        _thread=events.thread,
        _start=events.start,
        _end=end,
    )
