"""Tests that the traces of a directory are read as one, and ranks stay apart in it."""

from __future__ import annotations

import pytest
from kineto_events import event, kernel, launch, op, write

from opreplay.trace import TraceError, read_trace
from opreplay.trace.breakdown import rank_shares
from opreplay.trace.steps import parse_step


def rank_events(*, dur, kernel_us):
    """One call with one kernel; ids and threads are the same on every rank."""
    return [
        op("aten::mm", ts=100, dur=dur, types=["float"], dims=[[2, 3]], External_id=5),
        launch(ts=101, dur=1, correlation=7),
        kernel(ts=300, dur=kernel_us, correlation=7),
    ]


def directory_of(tmp_path, **files):
    for name, events in files.items():
        write(tmp_path / f"{name}.json", {"traceEvents": events})
    return read_trace(tmp_path)


def test_calls_of_all_ranks_are_grouped_together_with_their_own_kernels(tmp_path):
    trace = directory_of(
        tmp_path, rank_1=rank_events(dur=30, kernel_us=8), rank_0=rank_events(dur=10, kernel_us=2)
    )
    assert [(call.rank, call.duration_us, call.device_us) for call in trace.calls()] == [
        ("0", 10, 2),
        ("1", 30, 8),
    ]
    (group,) = trace.groups()
    assert (group.count, group.host.total, group.device.total) == (2, 40, 10)


def test_ranks_are_sorted_by_number(tmp_path):
    files = {f"worker-rank{n}.trace": rank_events(dur=n + 1, kernel_us=1) for n in (10, 2, 0)}
    assert [call.rank for call in directory_of(tmp_path, **files).calls()] == ["0", "2", "10"]


def test_an_annotation_of_one_rank_does_not_reach_another(tmp_path):
    step = "execute_context_1(6)_generation_0(0)"
    annotation = event(step, cat="user_annotation", ts=0, dur=10_000)
    trace = directory_of(
        tmp_path,
        rank_0=[annotation, *rank_events(dur=10, kernel_us=1)],
        rank_1=rank_events(dur=10, kernel_us=1),
    )
    assert [(call.step, call.batch) for call in trace.calls()] == [
        (step, parse_step(step)),
        (None, None),
    ]


def test_lengths_are_not_carried_from_one_rank_to_the_next(tmp_path):
    def events(step):
        return [
            event(step, cat="user_annotation", ts=0, dur=1000),
            *rank_events(dur=10, kernel_us=1),
        ]

    trace = directory_of(
        tmp_path,
        rank_0=events("execute_context_1(6)_generation_0(0)"),
        rank_1=events("execute_context_0(0)_generation_1(1)"),
    )
    assert [call.batch.generation.keys for call in trace.calls()] == [0, None]


def test_the_share_of_each_rank_is_told(tmp_path):
    trace = directory_of(
        tmp_path, rank_0=rank_events(dur=10, kernel_us=2), rank_1=rank_events(dur=30, kernel_us=8)
    )
    assert [(s.rank, s.calls, s.host_self_us, s.gpu_events, s.device_us) for s in
            rank_shares(trace.timeline)] == [("0", 1, 10, 1, 2), ("1", 1, 30, 1, 8)]  # fmt: skip


def test_a_file_without_a_rank_in_its_name_is_labelled_by_the_name(tmp_path):
    trace = directory_of(tmp_path, decode=rank_events(dur=1, kernel_us=1))
    assert [call.rank for call in trace.calls()] == ["decode.json"]


def test_two_files_of_one_rank_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"a_rank0.json and b_rank0.json are both of rank 0; keep"):
        directory_of(
            tmp_path,
            a_rank0=rank_events(dur=1, kernel_us=1),
            b_rank0=rank_events(dur=1, kernel_us=1),
        )


def test_a_directory_without_traces_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(TraceError, match=r"holds no trace; pass a file"):
        read_trace(tmp_path)


def test_an_execution_trace_beside_a_kineto_trace_is_refused(tmp_path):
    node = {"id": 2, "name": "aten::mm", "parent": 1, "tid": 1, "inputs": [], "input_shapes": [],
            "input_types": []}  # fmt: skip
    write(tmp_path / "rank1.json", {"schema": "1.0.1", "nodes": [node]})
    with pytest.raises(TraceError, match="rank 1 is an Execution Trace, those of other ranks"):
        directory_of(tmp_path, rank0=rank_events(dur=1, kernel_us=1))
