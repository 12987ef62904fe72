"""Tests what orjson refuses and profilers have written (requirement R47)."""

from __future__ import annotations

import pytest
from kineto_events import event, op, write

from opreplay.trace import read_trace

EVENT = (
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2,'
    b' "args": {"External id": 3}}'
)


def names_of(tmp_path, text):
    path = write(tmp_path / "trace.json", b'{"traceEvents": [' + text + b"]}")
    return [call.name for call in read_trace(path).calls()]


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (b'"External id": 3', b'"value": NaN, "External id": 3'),
        (b'"External id": 3', b'"value": -Infinity, "more": Infinity'),
        (b'"External id": 3', b'"id": 18446744073709551615'),
        (b'"External id": 3', b'"id": 123456789012345678901234567890'),
        (b'"External id": 3', b'"External id": 18446744073709551615'),
        (b'"pid": 1', b'"pid": 18446744073709551616'),
        (b'"args"', b'"name2": "tab\there\nand line", "args"'),
    ],
    ids=["nan", "infinity", "uint64", "huge", "huge id", "huge pid", "control characters"],
)
def test_r47_what_strict_json_refuses_does_not_abort_the_load(tmp_path, found, written):
    assert names_of(tmp_path, EVENT.replace(found, written)) == ["aten::mm"]


def test_r47_invalid_utf8_in_a_name_is_replaced(tmp_path):
    text = EVENT.replace(b"aten::mm", b"my::op_\xff\xfe")
    assert names_of(tmp_path, text) == ["my::op_��"]


@pytest.mark.parametrize(
    "name",
    ['lambda "x" of y', 'ends with "quote"', 'one " alone', 'comma "a", b', 'kept \\" escape "x"'],
)
def test_r47_unescaped_quotes_in_a_name_stay_inside_it(tmp_path, name):
    text = EVENT.replace(b"aten::mm", name.encode())
    assert names_of(tmp_path, text + b", " + EVENT) == [name.replace('\\"', '"'), "aten::mm"]


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = write(tmp_path / "trace.json", b'\xef\xbb\xbf{"traceEvents": [' + EVENT + b"]}")
    assert len(read_trace(path)) == 1


def test_a_top_level_list_is_a_trace(tmp_path):
    assert len(read_trace(write(tmp_path / "list.json", [event(), event(ts=30)]))) == 2


def test_junk_among_the_events_is_left_out(tmp_path):
    odd = [
        None,
        3,
        "text",
        [],
        {},
        {"ph": "X", "cat": None, "name": "no category", "ts": 0, "dur": 1},
        {"ph": "X", "cat": ["cpu_op"], "name": "list category", "ts": 0, "dur": 1},
        {"ph": "B", "cat": "cpu_op", "name": "half an event", "ts": 0},
        {"ph": "X", "cat": "cpu_op", "name": "no time", "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "odd time", "ts": "late", "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "odd duration", "ts": 1, "dur": None},
    ]
    kept = op("aten::add", ts="5.5", dur="2", tid="12")
    path = write(tmp_path / "trace.json", {"traceEvents": [*odd, kept]})
    (call,) = read_trace(path).calls()
    assert (call.name, call.start_us, call.duration_us, call.thread) == ("aten::add", 5.5, 2, "12")


def test_an_event_without_args_or_name_is_a_call_without_arguments(tmp_path):
    bare = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    odd = bare | {"name": 7, "ts": 5, "args": "none"}
    calls = list(read_trace(write(tmp_path / "t.json", {"traceEvents": [bare, odd]})).calls())
    assert [(call.name, call.arguments) for call in calls] == [("", None), ("7", None)]


def test_a_negative_duration_counts_as_none(tmp_path):
    (call,) = read_trace(write(tmp_path / "t.json", [event(dur=-5)])).calls()
    assert call.duration_us == 0
