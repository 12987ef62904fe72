"""Tests that captured calls get the kernels of the graph launches they belong to."""

from __future__ import annotations

import pytest
from kineto_events import SHARED_TRACES, event, kernel, launch, op, trace_of

from opreplay.trace import Selection, read_trace


def annotation(name, **rest):
    return event(name, cat="user_annotation", **rest)


def capture_of(*kernels_of_op, ts=0, first=1):
    """A capture of calls that launch one kernel each, 10 us apart; kernels do not run."""
    events = [launch("hipStreamBeginCapture", ts=ts, dur=1, correlation=first)]
    for index, (name, launched) in enumerate(kernels_of_op):
        at = ts + 10 * (index + 1)
        events += [
            op(name, ts=at, dur=8),
            launch(
                "hipLaunchKernel", ts=at + 2, dur=1, correlation=first + 1 + index, kernel=launched
            ),
        ]
    last = len(kernels_of_op) + 1
    return [
        *events,
        launch("hipStreamEndCapture", ts=ts + 10 * last, dur=1, correlation=first + last),
    ]


def run_of(*kernels, ts, correlation):
    """A graph launch with kernels of given names and durations, back to back."""
    events = [launch("hipGraphLaunch", ts=ts, dur=5, correlation=correlation)]
    for name, dur in kernels:
        ts += 100
        events.append(kernel(name, ts=ts, dur=dur, correlation=correlation))
    return events


def joined(tmp_path, capture, execution):
    (tmp_path / "c").mkdir()
    (tmp_path / "x").mkdir()
    return trace_of(tmp_path / "c", *capture).with_graph_launches(
        trace_of(tmp_path / "x", *execution)
    )


def device_times(trace):
    return {call.name: call.device_us for call in trace.calls()}


def test_a_captured_call_gets_the_time_of_its_kernel_in_the_run_with_the_median_time(tmp_path):
    trace = joined(
        tmp_path,
        capture_of(("aten::mm", "gemm"), ("aten::add", "add")),
        [
            one
            for index, (gemm, add) in enumerate([(9, 9), (5, 2), (3, 3)])  # totals 18, 7, 6
            for one in run_of(("gemm", gemm), ("add", add), ts=1000 * index, correlation=50 + index)
        ],
    )
    assert device_times(trace) == {"aten::mm": 5, "aten::add": 2}
    assert trace.graph_join.launches == 3
    assert (trace.graph_join.launched_us, trace.graph_join.named_us) == (31, 31)


def test_equal_graphs_of_one_step_are_taken_in_the_order_of_their_capture(tmp_path):
    trace = joined(
        tmp_path,
        [
            annotation("capture_8_PIECEWISE", ts=0, dur=200),
            *capture_of(("aten::layer0", "gemm"), ts=1, first=1),
            *capture_of(("aten::layer1", "gemm"), ts=101, first=11),
        ],
        [
            one
            for step in range(2)
            for one in (
                annotation("execute_context_1(8)_generation_0(0)", ts=2000 * step, dur=1900),
                *run_of(("gemm", 4), ts=2000 * step + 1, correlation=2 * step + 50),
                *run_of(("gemm", 7), ts=2000 * step + 501, correlation=2 * step + 51),
            )
        ],
    )
    assert device_times(trace) == {"aten::layer0": 4, "aten::layer1": 7}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("execute_context_1(5)_generation_2(2)", {"aten::small": 6, "aten::large": None}),
        ("execute_context_1(7)_generation_2(2)", {"aten::small": None, "aten::large": 6}),
        ("something else", {"aten::small": None, "aten::large": None}),
    ],
)
def test_the_tokens_of_the_step_tell_which_capture_ran(tmp_path, step, expected):
    trace = joined(
        tmp_path,
        [
            annotation("capture_8_FULL", ts=0, dur=99),
            *capture_of(("aten::small", "gemm"), ts=1, first=1),
            annotation("capture_16_FULL", ts=100, dur=99),
            *capture_of(("aten::large", "gemm"), ts=101, first=11),
        ],
        [annotation(step, ts=0, dur=500), *run_of(("gemm", 6), ts=1, correlation=50)],
    )
    assert device_times(trace) == expected
    if step == "something else":
        ((reason, time),) = trace.graph_join.unknown
        assert "batch sizes" in reason
        assert "0.0 % of it is named" in trace.graph_join.sentences[0]
        assert (time, trace.graph_join.named_us) == (6, 0)


@pytest.mark.parametrize(
    ("ran", "reason"),
    [
        ([("add", 1), ("gemm", 1)], "in this order"),
        ([("gemm", 1), ("add2", 1)], "in this order"),
        ([("gemm", 1)], "in this order"),
    ],
)
def test_other_kernels_or_another_order_stay_unknown(tmp_path, ran, reason):
    trace = joined(
        tmp_path,
        capture_of(("aten::mm", "gemm"), ("aten::add", "add")),
        run_of(*ran, ts=0, correlation=50),
    )
    assert device_times(trace) == {"aten::mm": None, "aten::add": None}
    assert reason in trace.graph_join.unknown[0][0]


def test_a_capture_that_names_no_kernels_says_so(tmp_path):
    capture = capture_of(("aten::mm", "gemm"))
    for recorded in capture:
        recorded["args"].pop("kernel", None)
    trace = joined(tmp_path, capture, run_of(("gemm", 3), ts=0, correlation=50))
    assert device_times(trace) == {"aten::mm": None}
    assert "doesn't name the kernels" in trace.graph_join.unknown[0][0]


def test_a_copy_in_a_graph_matches_the_copy_that_ran(tmp_path):
    capture = capture_of(("aten::mm", "gemm"))
    capture.insert(-1, op("aten::copy_", ts=15, dur=4))
    capture.insert(-1, launch("hipMemcpyAsync", ts=16, dur=1, correlation=9))
    copy = kernel("Memcpy DtoD (Device -> Device)", cat="gpu_memcpy", ts=500, dur=2, correlation=50)
    trace = joined(tmp_path, capture, [*run_of(("gemm", 3), ts=0, correlation=50), copy])
    assert trace.graph_join.named_us == 5


def test_a_graph_launch_without_any_capture_is_unknown(tmp_path):
    trace = joined(tmp_path, [op()], run_of(("gemm", 3), ts=0, correlation=50))
    assert trace.graph_join.named_us == 0
    assert len(trace.graph_join.unknown) == 1


def test_the_whole_kernel_time_of_a_piecewise_run_is_named_by_its_capture():
    if not SHARED_TRACES.is_dir():
        pytest.skip("the shared traces are not here")
    capture = SHARED_TRACES / "tracelens__vllm-piecewise-graph-capture-mi300.json.gz"
    execution = SHARED_TRACES / "tracelens__vllm-prefilldecode-piecewise-exec-mi300.json.gz"
    trace = read_trace(capture).with_graph_launches(read_trace(execution))
    join = trace.graph_join
    assert join.launches == 25
    assert join.named_us >= 0.95 * join.launched_us
    # Each of the 24 layers' rotary embeddings ran once, by the names in the execution trace.
    (rotary,) = [g for g in trace.groups(Selection(ops=("_C::rotary_embedding",)))]
    assert (rotary.count, [count for _, count in rotary.kernels]) == (24, [1])
