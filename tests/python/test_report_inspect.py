"""Tests what `opreplay inspect` prints and writes."""

from __future__ import annotations

import argparse
import io
import json

import pytest
from kineto_events import SHARED_TRACES, TINY_TRACE, event, kernel, launch, op, write
from rich.console import Console

from opreplay.report.inspect import add_arguments, inspect_command, print_inspection
from opreplay.trace import read_trace


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return inspect_command(parser.parse_args([str(argument) for argument in arguments]))


def test_the_first_table_says_where_the_time_went(capsys):
    assert run(TINY_TRACE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "operator events, 0 GPU events, threads: 1" in lines[0]
    assert lines[1].startswith("Where the time went")
    assert any(line.startswith("operator calls that can be replayed") for line in lines)
    assert any(line.startswith("aten::embedding") and "long int[4]" in line for line in lines)


def test_graphs_missing_fields_and_captured_calls_are_said(tmp_path, capsys):
    path = write(
        tmp_path / "trace.json",
        [
            launch("cudaStreamBeginCapture", ts=0, dur=1, correlation=8),
            op("aten::mm", ts=5, dur=5),
            launch("cudaStreamEndCapture", ts=12, dur=1, correlation=9),
            op("aten::add", ts=20, dur=5, types=["float", "Scalar"], dims=[[2, 3], []]),
            launch("cudaGraphLaunch", ts=50, dur=5, correlation=1),
            kernel("inside [bold]", ts=100, dur=9, correlation=1),
        ],
    )
    assert run(path) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of the calls were recorded while a graph was captured" in out
    assert "Note: The trace records no strides" in out
    assert "Note: Graph launches hold 100 % of the GPU time" in out
    assert "float[2,3], -" in out
    assert "not recorded" in out


def test_without_calls_there_is_no_table_of_calls(tmp_path, capsys):
    assert run(write(tmp_path / "t.json", [kernel(correlation=1)])) == 0
    out = capsys.readouterr().out
    assert "Recorded calls" not in out
    assert "kernels without a launch record" in out


def test_brackets_in_names_are_printed_as_they_are(tmp_path):
    trace = read_trace(write(tmp_path / "t.json", [op("odd [bold]name[/bold]")]))
    console = Console(file=io.StringIO(), width=120, markup=False)
    print_inspection(trace, trace.groups(), console=console)
    assert "odd [bold]name[/bold]" in console.file.getvalue()


def test_the_json_form_holds_breakdown_and_groups(tmp_path):
    path = write(
        tmp_path / "t.json",
        [
            event("step", cat="user_annotation", ts=0, dur=90),
            op("aten::mm", ts=5, dur=5, types=["float"], dims=[[2, 3]], strides=[[3, 1]]),
            launch(ts=6, dur=1, correlation=1),
            kernel("gemm", ts=100, dur=9, correlation=1),
        ],
    )
    assert run(path, "--json", tmp_path / "out.json") == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["format"] == "opreplay-inspect/1"
    assert (found["calls"], found["gpu_events"], found["device_us"]) == (1, 1, 9)
    assert found["breakdown"] == [
        {"cause": "operators", "count": 1, "host_self_us": 5, "device_us": 9, "kernels": 1}
    ]
    (group,) = found["groups"]
    assert (group["op"], group["count"], group["step"]) == ("aten::mm", 1, "step")
    assert group["arguments"] == [
        {"type": "float", "dims": [2, 3], "strides": [3, 1], "value": None}
    ]
    assert group["recorded_us"]["device"] == {"median": 9, "total": 9, "self_total": 9}
    assert group["kernels_recorded"] == [{"name": "gemm", "count": 1}]


def test_the_json_form_goes_to_standard_output_for_a_dash(capsys):
    assert run(TINY_TRACE, "--json", "-", "--op", "aten::mm") == 0
    assert [g["op"] for g in json.loads(capsys.readouterr().out)["groups"]] == ["aten::mm"]


@pytest.mark.parametrize(
    "arguments",
    [["/nowhere.json"], [TINY_TRACE, "--scope", "nowhere"], [TINY_TRACE, "--match", "("]],
    ids=["file", "scope", "match"],
)
def test_bad_use_is_one_line_on_standard_error_and_exit_status_2(capsys, arguments):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("opreplay inspect: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("path", sorted(SHARED_TRACES.glob("*.gz")), ids=lambda path: path.name)
def test_every_shared_trace_is_shown(capsys, path):
    status = run(path)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert status == 0
    assert "Where the time went" in captured.out
