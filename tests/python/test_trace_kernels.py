"""Tests which call owns which kernel, and the recorded times that follow."""

from __future__ import annotations

import numpy as np
import pytest
from kineto_events import SHARED_TRACES, calls_of, event, kernel, launch, op, trace_of

from opreplay.trace import read_trace
from opreplay.trace.nesting import NOTHING


def linear_with_child():
    """`aten::linear` launches a copy itself and has a child `aten::mm` that launches a kernel."""
    return [
        op("aten::linear", ts=0, dur=100),
        launch("cudaMemcpyAsync", ts=5, dur=2, correlation=1),
        op("aten::mm", ts=20, dur=50),
        launch(ts=30, dur=5, correlation=2),
        kernel("Memcpy HtoD", cat="gpu_memcpy", ts=110, dur=4, correlation=1),
        kernel("gemm", ts=120, dur=30, correlation=2),
    ]


def test_a_kernel_belongs_to_the_innermost_call_and_counts_for_those_around_it(tmp_path):
    calls = calls_of(tmp_path, *linear_with_child())
    outer, inner = calls["aten::linear"], calls["aten::mm"]
    assert outer.kernels == ("Memcpy HtoD", "gemm")
    assert inner.kernels == ("gemm",)
    assert (outer.device_us, inner.device_us) == (150 - 110, 30)
    assert (outer.device_self_us, inner.device_self_us) == (4, 30)


def test_host_self_time_leaves_out_children(tmp_path):
    calls = calls_of(tmp_path, *linear_with_child())
    assert (calls["aten::linear"].self_us, calls["aten::mm"].self_us) == (50, 50)


def test_a_call_without_kernels_has_no_device_time(tmp_path):
    call = calls_of(tmp_path, op())["aten::mm"]
    assert (call.kernels, call.device_us, call.device_self_us) == ((), None, None)


def test_a_launch_on_another_thread_belongs_to_that_threads_call(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::main", ts=0, dur=100, tid=1),
        op("aten::back", ts=10, dur=50, tid=2),
        launch(ts=20, dur=1, tid=2, correlation=9),
        kernel(ts=200, dur=7, correlation=9),
    )
    assert calls["aten::main"].kernels == ()
    assert calls["aten::back"].kernels == ("gemm",)


def test_the_same_thread_id_in_two_processes_is_two_threads(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::a", ts=0, dur=100, pid=1),
        op("aten::b", ts=10, dur=50, pid=2),
    )
    assert calls["aten::b"].parent is None


def test_old_capitalised_categories_are_read(tmp_path):
    old = [
        event("aten::mm", cat="Operator", tid="300", ts=0, dur=10),
        event("cudaLaunchKernel", cat="Runtime", tid="300", ts=2, dur=1, correlation=4),
        event("gemm", cat="Kernel", pid=0, tid="stream 7", ts=20, dur=5, correlation=4),
        event("Memset (Device)", cat="Memset", pid=0, tid="stream 7", ts=30, dur=5, correlation=4),
    ]
    call = calls_of(tmp_path, *old)["aten::mm"]
    assert call.kernels == ("gemm", "Memset (Device)")
    assert (call.thread, call.device_us) == ("300", 15)


def test_without_a_launch_the_external_id_names_the_call(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::mm", External_id=5),
        kernel(ts=50, dur=3, correlation=77, External_id=5),
    )
    assert calls["aten::mm"].device_us == 3


def test_an_external_id_that_repeats_the_correlation_names_no_call(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::mm", External_id=5),
        kernel(ts=50, dur=3, correlation=5, External_id=5),
    )
    assert calls["aten::mm"].kernels == ()


def test_launch_and_kernel_that_share_only_an_external_id_are_linked(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::mm", ts=0, dur=10),
        event("cudaLaunchKernel", cat="cuda_runtime", ts=2, dur=1, External_id=100),
        kernel(ts=50, dur=3, External_id=100),
    )
    assert calls["aten::mm"].kernels == ("gemm",)


def test_nest_gives_parent_and_leaf_of_operators_and_skips_ranges(tmp_path):
    calls = calls_of(
        tmp_path,
        op("ProfilerStep#1", ts=0, dur=100),
        op("aten::linear", ts=10, dur=50),
        op("sglang_profiler::rms_1", ts=20, dur=30),
        op("aten::mm", ts=25, dur=10),
        op("record_it", ts=27, dur=1),
    )
    assert {name: call.parent for name, call in calls.items()} == {
        "ProfilerStep#1": None,
        "aten::linear": None,
        "sglang_profiler::rms_1": "aten::linear",
        "aten::mm": "aten::linear",
        "record_it": "aten::mm",
    }
    assert [name for name, call in calls.items() if call.leaf] == ["aten::mm", "record_it"]


def test_equal_times_nest_by_external_id(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::inner", ts=5, dur=10, External_id=8),
        op("aten::outer", ts=5, dur=10, External_id=7),
    )
    assert calls["aten::inner"].parent == "aten::outer"
    assert (calls["aten::outer"].self_us, calls["aten::inner"].self_us) == (0, 10)


def test_a_child_that_rounding_moved_past_its_parents_end_is_inside(tmp_path):
    calls = calls_of(tmp_path, op("aten::a", ts=0, dur=10), op("aten::b", ts=4, dur=7))
    assert calls["aten::b"].parent == "aten::a"


def test_overlapping_events_are_not_nested(tmp_path):
    calls = calls_of(
        tmp_path,
        op("aten::a", ts=0, dur=10),
        op("aten::b", ts=5, dur=50),
        op("aten::c", ts=60, dur=5),
    )
    assert [call.parent for call in calls.values()] == [None, None, None]


def test_duplicate_events_count_once_in_self_time(tmp_path):
    trace = trace_of(tmp_path, op(ts=5, dur=10, External_id=1), op(ts=5, dur=10, External_id=1))
    (group,) = trace.groups()
    assert (group.count, group.host.self_total) == (2, 10)


def test_calls_between_begin_and_end_of_a_capture_are_in_graph(tmp_path):
    calls = calls_of(
        tmp_path,
        event("capture_8_FULL", cat="user_annotation", ts=0, dur=1000),
        op("aten::warm_up", ts=10, dur=5),
        launch("hipStreamBeginCapture", ts=20, dur=1, correlation=1),
        op("aten::captured", ts=30, dur=5),
        op("aten::elsewhere", ts=31, dur=5, tid=2),
        launch("hipStreamEndCapture", ts=50, dur=1, correlation=2),
        op("aten::after", ts=60, dur=5),
    )
    assert [name for name, call in calls.items() if call.in_graph] == ["aten::captured"]


def test_a_capture_without_an_end_lasts_to_the_end_of_the_trace(tmp_path):
    calls = calls_of(
        tmp_path,
        launch("cudaStreamBeginCapture_v10000", ts=20, dur=1, correlation=1),
        op("aten::captured", ts=30, dur=5),
    )
    assert calls["aten::captured"].in_graph


def test_a_capture_annotation_stands_for_missing_capture_calls(tmp_path):
    calls = calls_of(
        tmp_path,
        event("capture_8_DECODE", cat="user_annotation", ts=0, dur=50),
        op("aten::inside", ts=10, dur=5),
        op("aten::after", ts=60, dur=5),
    )
    assert (calls["aten::inside"].in_graph, calls["aten::after"].in_graph) == (True, False)


def test_the_step_is_the_innermost_annotation_on_the_same_thread(tmp_path):
    calls = calls_of(
        tmp_path,
        event("outer", cat="user_annotation", ts=0, dur=100),
        event("inner", cat="user_annotation", ts=10, dur=20),
        event("other", cat="user_annotation", ts=11, dur=18, tid=2),
        op("aten::a", ts=12, dur=5),
        op("aten::b", ts=50, dur=5),
        op("aten::c", ts=200, dur=5),
    )
    assert [call.step for call in calls.values()] == ["inner", "outer", None]


def test_a_thread_without_annotations_takes_the_innermost_of_another(tmp_path):
    calls = calls_of(
        tmp_path,
        event("ProfilerStep#1", cat="user_annotation", ts=0, dur=100, tid=1),
        event("late", cat="user_annotation", ts=5, dur=50, tid=3),
        op("aten::backward", ts=20, dur=5, tid=2),
        op("aten::overhang", ts=90, dur=50, tid=2),
    )
    assert [call.step for call in calls.values()] == ["late", None]


def test_a_profiler_step_among_the_operators_is_a_step(tmp_path):
    calls = calls_of(
        tmp_path,
        op("ProfilerStep#4", ts=0, dur=100),
        op("aten::a", ts=12, dur=5),
    )
    assert calls["aten::a"].step == "ProfilerStep#4"


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("kineto__tb-resnet50-int-types-v100", 9258),
        ("tracelens__qwen1.5-0.5b-h100", 1198),
        ("tracelens__sglang-qwen3-8b-prefilldecode-mi300", 532),
        ("tracelens__vllm-prefilldecode-piecewise-exec-mi300", 62),
    ],
)
def test_owners_found_by_time_are_those_that_the_profiler_names_by_id(name, launches):
    timeline = read_trace(SHARED_TRACES / f"{name}.json.gz").timeline
    rows = {int(i): row for row, i in enumerate(timeline.lanes.op.external_id)}
    used = np.unique(timeline.launches.launch[timeline.launches.launch != NOTHING])
    by_id = [rows.get(int(timeline.lanes.launch.external_id[launch])) for launch in used]
    by_time = timeline.launches.launch_owner[used].tolist()
    named = [(a, b) for a, b in zip(by_id, by_time, strict=True) if a is not None]
    assert len(named) == launches
    assert all(a == b for a, b in named)
