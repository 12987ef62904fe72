"""Tests of which event runs inside which, against a search through all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay import _scan
from opreplay.trace.events import Events, Examples
from opreplay.trace.nesting import preorder

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


def around_by_search(rows, parents, thread, start, end):
    """Walks up from the last row of a thread that has started."""
    row = max((i for i, r in enumerate(rows) if r[0] == thread and r[1] <= start), default=-1)
    while row >= 0 and rows[row][2] < end:
        row = parents[row]
    return row


@given(intervals=INTERVALS, asked=INTERVALS)
def test_the_innermost_interval_around_a_span_is_found(intervals, asked):
    rows = sorted((t, s, -d) for t, s, d in intervals)
    rows = [(thread, start, start - minus) for thread, start, minus in rows]
    parents, _, _ = nested_by_search(rows, 1.0)
    columns = np.array(rows, np.float64).reshape(-1, 3).T
    tree = (columns[0].astype(np.int64), columns[1], columns[2])
    spans = np.array(asked, np.float64).reshape(-1, 3).T
    thread, start, end = spans[0].astype(np.int64), spans[1], spans[1] + spans[2]
    found = _scan.innermost(tree, np.array(parents, np.int64), thread, start, end)
    one_by_one = [
        [around_by_search(rows, parents, t, s, s + d) for t in range(3)] for _, s, d in asked
    ]
    assert found.tolist() == [
        by_thread[t] for by_thread, (t, _, _) in zip(one_by_one, asked, strict=True)
    ]
    of_any = _scan.innermost(tree, np.array(parents, np.int64), None, start, end)
    assert of_any.tolist() == [
        max((row for row in by_thread if row >= 0), key=lambda row: rows[row][1], default=-1)
        for by_thread in one_by_one
    ]


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=30),
)
def test_rows_come_by_thread_and_start_the_longer_first_and_then_by_id(rows):
    thread, start, duration, external_id = np.array(rows, np.int64).reshape(-1, 4).T
    events = Events(
        start=start.astype(float),
        duration=duration.astype(float),
        thread=thread,
        external_id=external_id,
        correlation=external_id,
        distinct=np.zeros(len(rows), np.int64),
        examples=Examples.of([{"name": "x"}]),
    )
    expected = sorted(
        range(len(rows)),
        key=lambda i: (thread[i], start[i], -duration[i], external_id[i], i),
    )
    assert preorder(events).tolist() == expected


def test_columns_of_different_length_are_refused():
    none, one, two = np.zeros(0, np.int64), np.zeros(1), np.zeros(2)
    with pytest.raises(ValueError, match="equal length"):
        _scan.nest(np.zeros(2, np.int64), two, one, tolerance=1.0)
    with pytest.raises(ValueError, match="equal length"):
        _scan.innermost((none, one, two), none, None, one, one)
