"""Tests where the time of a trace went."""

from __future__ import annotations

import pytest
from kineto_events import SHARED_TRACES, kernel, launch, op, trace_of

from opreplay.trace import read_trace
from opreplay.trace.breakdown import CAUSES, break_down


def shares_of(tmp_path, *events):
    breakdown = break_down(trace_of(tmp_path, *events).timeline)
    return {
        share.cause: (share.count, share.host_self_us, share.device_us, share.kernels)
        for share in breakdown.shares
    }


def test_each_kind_of_event_has_its_share(tmp_path):
    triton = op("sage_fwd_1", ts=600, dur=8)
    triton["args"]["kernel_backend"] = "triton"
    assert shares_of(
        tmp_path,
        op("aten::mm", ts=0, dur=10),
        launch(ts=1, dur=1, correlation=1),
        op("vllm::unified_attention", ts=100, dur=20),
        launch(ts=101, dur=1, correlation=2),
        op("c10d::allreduce_", ts=200, dur=30),
        op("Torch-Compiled Region", ts=300, dur=40),
        op("triton_poi_fused_0", ts=310, dur=5),
        op("AddmmBackward0", ts=400, dur=6),
        op("detach", ts=500, dur=7),
        triton,
        launch("cuLaunchKernel", ts=700, dur=3, correlation=3),
        kernel("gemm", ts=1000, dur=100, correlation=1),
        kernel("attention", ts=1100, dur=200, correlation=2),
        kernel("alone", ts=1300, dur=300, correlation=3),
        kernel("lost", ts=1600, dur=400, correlation=4),
        kernel("ncclDevKernel_AllReduce", ts=2000, dur=500, correlation=5),
    ) == {
        "operators": (1, 10, 100, 1),
        "triton": (2, 13, 0, 0),
        "compiled_regions": (1, 35, 0, 0),
        "engine_context": (1, 20, 200, 1),
        "collectives": (1, 30, 500, 1),
        "autograd": (1, 6, 0, 0),
        "ranges": (1, 7, 0, 0),
        "outside_operators": (1, 3, 300, 1),
        "no_launch_record": (1, 0, 400, 1),
    }


def test_a_graph_launch_takes_its_time_from_the_operator_around_it(tmp_path):
    events = [
        op("aten::run", ts=0, dur=50),
        launch("hipGraphLaunch", ts=10, dur=20, correlation=1),
        kernel("a", ts=100, dur=60, correlation=1),
        kernel("nccl_b", ts=200, dur=40, correlation=1),
        launch(ts=40, dur=1, correlation=2),
        kernel("c", ts=300, dur=25, correlation=2),
    ]
    assert shares_of(tmp_path, *events) == {
        "operators": (1, 30, 25, 1),
        "graph_launches": (1, 20, 100, 2),
    }
    breakdown = break_down(trace_of(tmp_path, *events).timeline)
    assert (breakdown.host_us, breakdown.device_us) == (50, 125)
    (advice,) = breakdown.advice
    assert advice.startswith("Graph launches hold 80 % of the GPU time")
    assert "record the capture" in advice


def test_captured_calls_are_counted(tmp_path):
    trace = trace_of(
        tmp_path,
        launch("cudaStreamBeginCapture", ts=0, dur=1, correlation=1),
        op("aten::mm", ts=5, dur=5),
        op("detach", ts=20, dur=5),
        launch("cudaStreamEndCapture", ts=30, dur=1, correlation=2),
        op("aten::mm", ts=50, dur=5),
    )
    assert break_down(trace.timeline).captured_calls == 1


def test_causes_come_in_the_order_of_their_list(tmp_path):
    found = list(shares_of(tmp_path, op("detach", ts=0), op("aten::mm", ts=50)))
    assert found == [cause for cause in CAUSES if cause in found] == ["operators", "ranges"]


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="no shared traces")
def test_graph_launches_hold_96_percent_of_a_vllm_trace():
    name = "tracelens__vllm-prefilldecode-piecewise-exec-mi300.json.gz"
    breakdown = break_down(read_trace(SHARED_TRACES / name).timeline)
    (graphs,) = [share for share in breakdown.shares if share.cause == "graph_launches"]
    assert (graphs.count, graphs.kernels) == (25, 361)
    assert round(100 * graphs.device_us / breakdown.device_us) == 96
