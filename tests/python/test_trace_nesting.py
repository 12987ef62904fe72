"""Tests of which event runs inside which, against a search through all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay import _scan

INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)), max_size=40
)


def nested_by_search(rows, tolerance):
    """Walks up from the row before, level by level, to the first that encloses a row."""
    parents, depths = [], []
    for thread, start, end in rows:
        above = len(parents) - 1
        while above >= 0:
            outer = rows[above]
            if outer[0] == thread and start < outer[2] and end <= outer[2] + tolerance:
                break
            above = parents[above]
        parents.append(above)
        depths.append(0 if above < 0 else depths[above] + 1)
    sizes = [1] * len(rows)
    for row in reversed(range(len(rows))):
        if parents[row] >= 0:
            sizes[parents[row]] += sizes[row]
    return parents, depths, sizes


@given(intervals=INTERVALS, tolerance=st.sampled_from([0.0, 1.0]))
def test_intervals_nest_as_a_search_finds_them(intervals, tolerance):
    rows = sorted((t, s, -d) for t, s, d in intervals)
    rows = [(thread, start, start - minus) for thread, start, minus in rows]
    columns = np.array(rows, np.float64).reshape(-1, 3).T
    found = _scan.nest(columns[0].astype(np.int64), columns[1], columns[2], tolerance=tolerance)
    assert tuple(column.tolist() for column in found) == nested_by_search(rows, tolerance)


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        _scan.nest(np.zeros(2, np.int64), np.zeros(2), np.zeros(1), tolerance=1.0)
