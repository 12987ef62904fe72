"""Tests that the scanner's columns equal those of orjson on every valid document."""

from __future__ import annotations

import gzip
import json
import math
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_events import SHARED_TRACES, TINY_TRACE

from opreplay.trace import TraceError
from opreplay.trace.arguments import read_arguments
from opreplay.trace.scanning import scan_lanes

LANE_OF_CATEGORY = {
    "cpu_op": "op",
    "Operator": "op",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "Runtime": "launch",
    "kernel": "gpu",
    "gpu_memcpy": "gpu",
    "gpu_memset": "gpu",
    "Kernel": "gpu",
    "Memcpy": "gpu",
    "Memset": "gpu",
    "user_annotation": "annotation",
}
OTHERS = ("Input dims", "kernel", "kernel_backend")


def by_orjson(data: bytes) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the rows of each lane, read event by event with orjson and `read_arguments`."""
    document = orjson.loads(data)
    rows = {"op": [], "launch": [], "gpu": [], "annotation": []}
    for event in document if isinstance(document, list) else document["traceEvents"]:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        lane = LANE_OF_CATEGORY.get(event.get("cat"))
        start, duration = event.get("ts"), event.get("dur", 0)
        if lane is None or not is_number(start) or not is_number(duration):
            continue
        fields = event.get("args", {})
        rows[lane].append(
            (
                event.get("name", ""),
                float(start),
                max(float(duration), 0.0),
                str(event.get("tid", "")),
                integer(fields.get("external id", fields.get("External id"))),
                integer(fields.get("correlation")),
                read_arguments(event),
                [fields.get(key) for key in OTHERS],
            )
        )
    return rows


def is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def integer(value):
    return value if type(value) is int and 0 <= value < 2**63 else -1


def cut_up(data: bytes, cuts) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def by_scanner(data: bytes, *, cuts=()) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the same rows from the scanner, fed in pieces that end at `cuts`."""
    lanes = scan_lanes("trace", cut_up(data, cuts))
    rows = {}
    for lane in ("op", "launch", "gpu", "annotation"):
        events = getattr(lanes, lane)
        kinds = events.examples
        rows[lane] = [
            (
                events.name(row),
                events.start[row],
                events.duration[row],
                lanes.threads[events.thread[row]],
                events.external_id[row],
                events.correlation[row],
                kinds.arguments[events.distinct[row]],
                [kinds.fields.get(int(events.distinct[row]), {}).get(key) for key in OTHERS],
            )
            for row in range(len(events))
        ]
    return rows


@pytest.mark.parametrize(
    "path",
    [TINY_TRACE, *sorted(p for p in SHARED_TRACES.glob("*.gz") if "param__et" not in p.name)],
    ids=lambda path: path.name,
)
def test_columns_of_recorded_traces_equal_those_of_orjson(path):
    data = gzip.decompress(path.read_bytes())
    assert by_scanner(data) == by_orjson(data)


TEXT = st.text(st.sampled_from('ab:,"\\{}[]\n\x00é€\U0001f600/ '), max_size=70)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
SIZES = st.lists(st.integers(-(2**63), 2**64), max_size=3)
ARGUMENTS = st.tuples(
    st.one_of(st.sampled_from(["float", "long int", "Scalar", ""]), TEXT),
    st.one_of(SIZES, st.lists(SIZES, max_size=2)),
    st.one_of(SIZES, st.lists(SIZES, max_size=2)),
    st.one_of(st.sampled_from(["", "[1, 2]", "0.5"]), TEXT),
)
LISTS = st.lists(ARGUMENTS, max_size=4).map(
    lambda rows: dict(
        zip(
            ("Input type", "Input Dims", "Input Strides", "Concrete Inputs"),
            map(list, zip(*rows, strict=True)),
            strict=False,
        )
    )
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "External id": st.integers(0, 2**64 - 1),
        "correlation": st.integers(0, 2**63 - 1),
        "Input type": st.lists(TEXT, max_size=3),
        "Input Dims": VALUES,
        "Concrete Inputs": VALUES,
        "kernel": TEXT,
        "other": VALUES,
    },
)
ALL_FIELDS = st.one_of(
    FIELDS,
    LISTS,
    st.tuples(LISTS, FIELDS).map(lambda parts: {**parts[1], **parts[0]}),
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "X", "M", "s"]),
        "cat": st.sampled_from([*LANE_OF_CATEGORY, "python_function", "ac2g"]),
        "name": TEXT,
        "pid": st.just(1),
        "tid": st.one_of(st.integers(0, 3), st.sampled_from(["stream 7", "12"])),
        "ts": NUMBERS,
        "dur": st.one_of(NUMBERS, st.none()),
        "args": ALL_FIELDS,
        "extra": VALUES,
    },
).flatmap(lambda event: st.permutations(list(event.items())).map(dict))
RECORDS = st.lists(st.one_of(EVENTS, VALUES.filter(lambda v: not isinstance(v, dict))), max_size=12)
DOCUMENTS = st.one_of(
    RECORDS,
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "schema"]), VALUES),
        RECORDS,
        st.dictionaries(st.sampled_from(["z", "b c"]), VALUES),
    ).map(lambda parts: {**parts[0], "traceEvents": parts[1], **parts[2]}),
)


@settings(max_examples=300, deadline=None)
@given(
    document=DOCUMENTS,
    layout=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
)
def test_columns_of_any_valid_document_equal_those_of_orjson(document, layout, ascii_only, cuts):
    data = json.dumps(document, separators=layout, ensure_ascii=ascii_only).encode()
    events = document if isinstance(document, list) else document["traceEvents"]
    if not any(isinstance(event, dict) for event in events):
        with pytest.raises(TraceError, match="holds no event"):
            by_scanner(data, cuts=cuts)
    else:
        assert by_scanner(data, cuts=cuts) == by_orjson(data)


LAYOUTS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t"), (",", ":  ")])


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(st.tuples(EVENTS, LAYOUTS), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
)
def test_each_event_may_have_a_layout_and_an_order_of_its_own(events, cuts):
    texts = [json.dumps(event, separators=layout) for event, layout in events]
    data = f"[{','.join(texts)}]".encode()
    assert by_scanner(data, cuts=cuts) == by_orjson(data)


EVENT = (
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2,'
    b' "args": {"External id": 3, "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}}'
)
PYTHON = EVENT.replace(b"cpu_op", b"python_function")


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(
        st.one_of(
            st.sampled_from(
                [EVENT, PYTHON, b",", b'"', b"\\", b"{", b"}", b"[", b"]", b" ", b"\n"]
            ),
            st.binary(max_size=4),
        ),
        max_size=20,
    ).map(b"".join),
    head=st.sampled_from([b"", b"[", b'{"traceEvents": [']),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
)
def test_any_bytes_end_in_columns_or_in_one_sentence(text, head, cuts):
    try:
        lanes = scan_lanes("trace", cut_up(head + text, cuts))
    except TraceError as error:
        assert str(error).startswith("trace: byte ")
    else:
        assert len(lanes.op) == len(lanes.op.distinct)


@pytest.mark.parametrize("sizes", [b"[[1,,2], []]", b"[[007, 3], []]", b"[[2, 3], []}"])
def test_lists_that_are_no_json_are_told_with_their_place(sizes):
    data = b"[" + EVENT + b"," + EVENT.replace(b"[[2, 3], []]", sizes) + b"]"
    with pytest.raises(TraceError, match=rf"^trace: byte {len(EVENT) + 2}: "):
        scan_lanes("trace", [data])


def test_a_list_of_another_form_spoils_no_other_call():
    odd = EVENT.replace(b"[2, 3]", b"[NaN, 3]")
    lanes = scan_lanes("trace", [b"[" + EVENT + b"," + odd + b"]"])
    known, unknown = lanes.op.examples.arguments
    assert [(argument.type, argument.dims) for argument in known] == [
        ("float", (2, 3)), ("Scalar", ()),
    ]  # fmt: skip
    assert unknown is None


@pytest.mark.parametrize("stray", [b'a "stray', b'two "stray" quotes', b'brace "{ x', b'"'])
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_stray_quotes_in_skipped_events_lose_no_other_event(stray, count):
    python = PYTHON.replace(b"aten::mm", stray)
    data = b'{"traceEvents": [' + b", ".join([EVENT, python] * count + [EVENT]) + b"]}"
    assert len(scan_lanes("trace", [data]).op) == count + 1


def test_an_event_larger_than_many_pieces_is_kept_whole():
    large = EVENT.replace(b"[2, 3]", b"[" + b", ".join([b"7"] * 400_000) + b"]")
    data = b"[" + EVENT + b"," + large + b"," + EVENT + b"]"
    pieces = [data[at : at + 10_000] for at in range(0, len(data), 10_000)]
    lanes = scan_lanes("trace", pieces)
    assert lanes.op.distinct.tolist() == [0, 1, 0]
    assert len(lanes.op.examples.arguments[1][0].dims) == 400_000


def test_a_loose_document_in_single_bytes_is_read_in_linear_time():
    # Read from its beginning at each byte, this one would take minutes.
    large = EVENT.replace(b"aten::mm", b'a "stray" ' + 200_000 * b"x")
    pieces = [bytes([byte]) for byte in b"[" + large + b"," + EVENT + b"]"]
    assert scan_lanes("trace", pieces).op.distinct.tolist() == [0, 1]
