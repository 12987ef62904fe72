"""Tests traces as a whole: groups, selection, what is missing, and the shared traces."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from kineto_events import SHARED_TRACES, TINY_TRACE, event, kernel, launch, op, trace_of

from opreplay.trace import LEVELS, Selection, read_trace, signature_of

MATRICES = {"types": ["float", "float"], "dims": [[2, 3], [3, 4]]}


def provenance():
    """Returns the cpu_ops column of the shared traces' table, for Kineto files."""
    table = SHARED_TRACES / "PROVENANCE.md"
    if not table.exists():
        return {}
    rows = re.findall(r"^\| (\S+\.gz) \|(.*)\|$", table.read_text(), re.MULTILINE)
    counts = {name: cells.split("|")[5].strip() for name, cells in rows}
    return {name: int(count) for name, count in counts.items() if count.isdigit()}


def names(groups):
    return [group.call.name for group in groups]


def test_identical_calls_make_one_group_with_median_and_total(tmp_path):
    trace = trace_of(
        tmp_path,
        op(ts=0, dur=10, **MATRICES),
        op(ts=20, dur=40, **MATRICES),
        op(ts=100, dur=20, **MATRICES),
        op(ts=200, dur=5, types=["float", "float"], dims=[[2, 3], [3, 5]]),
    )
    first, second = trace.groups()
    assert (first.count, second.count) == (3, 1)
    assert (first.host.median, first.host.total, first.host.self_total) == (20, 70, 70)
    assert first.call.start_us == 100
    assert first.device is None


def test_the_median_of_two_calls_is_their_mean_and_the_shorter_stands_for_them(tmp_path):
    (group,) = trace_of(tmp_path, op(ts=0, dur=10), op(ts=20, dur=30)).groups()
    assert (group.host.median, group.call.duration_us) == (20, 10)


def test_ids_and_times_do_not_tell_calls_apart(tmp_path):
    trace = trace_of(
        tmp_path,
        op(ts=0, External_id=1, Sequence_number=4, Ev_Idx=7, **MATRICES),
        op(ts=50, External_id=2, Sequence_number=5, Ev_Idx=8, tid=3, **MATRICES),
    )
    assert [group.count for group in trace.groups()] == [2]


@pytest.mark.parametrize(
    "lists",
    [
        {"types": ["float"], "dims": [[3]]},
        {"types": ["double"], "dims": [[2]]},
        {"types": ["float"], "dims": [[2]], "strides": [[2]]},
        {"types": ["float"], "dims": [[2]], "values": ["1"]},
        {},
    ],
    ids=["dims", "types", "strides", "values", "unrecorded"],
)
def test_each_recorded_field_tells_calls_apart(tmp_path, lists):
    one = {"types": ["float"], "dims": [[2]]}
    assert len(trace_of(tmp_path, op(**one), op(ts=50, **lists)).groups()) == 2


def test_the_signature_is_the_hash_of_name_and_arguments(tmp_path):
    (group,) = trace_of(tmp_path, op(**MATRICES)).groups()
    assert group.signature == signature_of("aten::mm", group.call.arguments)


def test_a_group_has_device_times_of_the_calls_that_launched(tmp_path):
    trace = trace_of(
        tmp_path,
        op(ts=0, dur=10),
        op(ts=20, dur=10),
        launch(ts=22, dur=1, correlation=1),
        op(ts=40, dur=30),
        launch(ts=42, dur=1, correlation=2),
        kernel("a", ts=100, dur=8, correlation=1),
        kernel("b", ts=200, dur=6, correlation=2),
        kernel("b", ts=210, dur=6, correlation=2),
    )
    (group,) = trace.groups()
    assert group.count == 3
    assert (group.device.median, group.device.total, group.device.self_total) == (12, 24, 20)
    assert group.kernels == (("a", 1),)


def test_a_group_is_in_graph_if_one_of_its_calls_is(tmp_path):
    trace = trace_of(
        tmp_path,
        op(ts=0),
        event("capture_1_FULL", cat="user_annotation", ts=50, dur=50),
        op(ts=60),
    )
    assert [group.in_graph for group in trace.groups()] == [True]


def test_calls_come_by_start_time_across_threads(tmp_path):
    trace = trace_of(
        tmp_path,
        op("aten::c", ts=30, tid=1),
        op("aten::a", ts=10, tid=2),
        op("aten::b", ts=20, tid=1, dur=5),
    )
    assert [call.name for call in trace.calls()] == ["aten::a", "aten::b", "aten::c"]
    assert [call.start_us for call in trace.calls("aten::b")] == [20]


def nested(tmp_path):
    return trace_of(
        tmp_path,
        event("step[DECODE bs=1]", cat="user_annotation", ts=0, dur=60),
        op("aten::linear", ts=0, dur=50),
        op("aten::mm", ts=10, dur=35),
        launch(ts=12, dur=1, correlation=1),
        event("step[EXTEND bs=2]", cat="user_annotation", ts=90, dur=60),
        op("aten::relu", ts=100, dur=9),
        launch(ts=102, dur=1, correlation=2),
        op("aten::view", ts=120, dur=8),
        kernel(ts=200, dur=20, correlation=1),
        kernel(ts=230, dur=30, correlation=2),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, ["aten::linear", "aten::mm", "aten::relu", "aten::view"]),
        ({"ops": ("aten::mm", "aten::view")}, ["aten::mm", "aten::view"]),
        ({"match": "^aten::(re|li)"}, ["aten::linear", "aten::relu"]),
        ({"ops": ("aten::mm",), "match": "relu"}, []),
        ({"level": "outermost"}, ["aten::linear", "aten::relu", "aten::view"]),
        ({"level": "leaf"}, ["aten::mm", "aten::relu", "aten::view"]),
        ({"scope": "step[EXTEND bs=2]"}, ["aten::relu", "aten::view"]),
        ({"scope": "DECODE"}, ["aten::linear", "aten::mm"]),
        ({"limit": 2}, ["aten::linear", "aten::mm"]),
        ({"top": 2}, ["aten::relu", "aten::mm"]),
        ({"top": 2, "level": "outermost"}, ["aten::relu", "aten::linear"]),
        ({"top": 3, "limit": 1}, ["aten::relu"]),
    ],
    ids=str,
)
def test_selection_keeps_what_fits(tmp_path, choice, expected):
    assert names(nested(tmp_path).groups(Selection(**choice))) == expected


def test_top_ranks_by_host_self_time_without_a_device(tmp_path):
    trace = trace_of(
        tmp_path,
        op("aten::linear", ts=0, dur=50),
        op("aten::mm", ts=5, dur=40),
        op("aten::add", ts=60, dur=15),
    )
    assert names(trace.groups(Selection(top=3))) == ["aten::mm", "aten::add", "aten::linear"]


def test_scope_covers_calls_after_a_short_annotation_inside_a_long_one(tmp_path):
    trace = trace_of(
        tmp_path,
        event("step long", cat="user_annotation", ts=0, dur=100),
        event("step short", cat="user_annotation", ts=10, dur=5),
        op("aten::late", ts=50),
        op("aten::outside", ts=150),
    )
    assert names(trace.groups(Selection(scope="step"))) == ["aten::late"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"match": "("}, "not a regular expression"),
        ({"scope": "nowhere"}, "no annotation is named 'nowhere'; the trace has: step"),
        ({"level": "inner"}, "level is 'inner', expected one of all, outermost, leaf"),
    ],
    ids=["match", "scope", "level"],
)
def test_a_malformed_choice_is_refused(tmp_path, choice, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        nested(tmp_path).groups(Selection(**choice))


def test_levels_are_listed():
    assert LEVELS == ("all", "outermost", "leaf")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([op(types=["float"], dims=[[2]], strides=[[1]], values=[""])], []),
        ([op()], ["types or no dims"]),
        ([op(types=["float"], dims=[[2]])], ["strides", "values of scalars"]),
        ([op(types=["float"], dims=[[2]], values=[""])], ["strides"]),
        (
            [op("aten::cat", types=["TensorList"], dims=[[]], strides=[[]], values=[""])],
            ["dims of tensor lists"],
        ),
        ([kernel(correlation=1)], ["no operator events"]),
        ([op("record_param_comms")], ["no operator call that can be replayed"]),
        (
            [op(types=[], dims=[]), launch(correlation=3)],
            ["GPU launches, but no kernels"],
        ),
    ],
    ids=["nothing", "shapes", "old", "strides", "lists", "gpu only", "collectives", "kernels"],
)
def test_what_is_missing_is_said_once_with_the_flag(tmp_path, events, expected):
    missing = trace_of(tmp_path, *events).missing
    assert len(missing) == len(expected)
    for sentence, part in zip(missing, expected, strict=True):
        assert part in sentence
        assert re.search(r"record with torch|record_shapes=True", sentence)


def test_the_recorded_trace_groups_its_two_equal_steps():
    trace = read_trace(TINY_TRACE)
    (embedding,) = trace.groups(Selection(("aten::embedding",)))
    assert embedding.count == 2
    assert embedding.call.step.startswith("execute_context_0(0)_generation_4(")
    assert [a.dims for a in embedding.call.arguments] == [(8, 16), (4,), (), (), ()]
    (mm,) = trace.groups(Selection(("aten::mm",)))
    assert mm.call.parent == "aten::matmul"
    assert trace.missing == ()


def test_reading_a_trace_imports_neither_torch_nor_the_extension():
    code = (
        "import sys; from opreplay.trace import read_trace; import opreplay.report.inspect; "
        f"assert read_trace({str(TINY_TRACE)!r}).groups(); "
        "assert not {'torch', 'opreplay._C'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("name", "count"), provenance().items())
def test_shared_traces_hold_the_operators_that_their_table_says(name, count):
    trace = read_trace(SHARED_TRACES / name)
    assert len(trace) == count
    groups = trace.groups()
    assert sum(group.count for group in groups) == count
    assert len({group.signature for group in groups}) == len(groups)


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="no shared traces")
def test_the_vllm_cpu_trace_has_286_signatures():
    trace = read_trace(SHARED_TRACES / "local__vllm-cpu-dense-qwen2.json.gz")
    assert len(trace.groups()) == 286
    assert trace.missing == ()
