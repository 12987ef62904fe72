"""Long runs: what is on disk when a worker, the run or the disk comes to its end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from kineto_events import op, write
from made_reports import ENVIRONMENT, row

from opreplay.cli import main
from opreplay.replay import _all_devices
from opreplay.report.results_file import ResultsError, read_results
from opreplay.report.row_log import RowLog

HERE = ["--device", "cpu", "--time", "0.002", "--threads", "1"]
NAMES = ["aten::relu", "aten::abs", "hostile::hang", "aten::neg", "aten::exp"]


def unary(name, ts):
    return op(name, types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=ts)


@pytest.fixture
def trace(tmp_path):
    """Five calls, the third of which hangs."""
    events = [unary(name, 20 * place) for place, name in enumerate(NAMES)]
    return str(write(tmp_path / "trace.json", {"traceEvents": events}))


@pytest.fixture
def quick(tmp_path):
    """Twelve calls that do not hang."""
    names = [
        "relu",
        "abs",
        "neg",
        "exp",
        "sin",
        "cos",
        "tan",
        "ceil",
        "floor",
        "sign",
        "log",
        "erf",
    ]
    events = [unary(f"aten::{name}", 20 * place) for place, name in enumerate(names)]
    return str(write(tmp_path / "quick.json", {"traceEvents": events}))


def begin(*arguments, **choices):
    """A run in a process of its own."""
    command = [sys.executable, "-m", "opreplay", "run", *map(str, arguments), *HERE]
    return subprocess.Popen(
        [*command, "--import", "hostile_ops"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent, **choices,
    )  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ops(path):
    return [line["op"] for line in lines(path)[1:]]


def wait_for_rows(path, count):
    for _ in range(600):
        if path.exists() and path.read_bytes().count(b"\n") >= count + 1:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} has not got {count} rows")


def test_a_killed_run_goes_on_with_the_call_that_was_running(trace, tmp_path):
    out = tmp_path / "out.jsonl"
    with begin(trace, "--jsonl", out) as running:
        wait_for_rows(out, 2)  # now the third one hangs
        running.send_signal(signal.SIGKILL)
    kept = out.read_bytes()
    with begin(trace, "--jsonl", out, "--resume", "--timeout", "0.5") as again:
        said = again.stdout.read()

    assert again.returncode == 0
    assert ops(out) == NAMES
    assert out.read_bytes().startswith(kept)
    assert lines(out)[3]["reason"] == "timed_out"
    assert "2 rows are there already" in said


def test_a_killed_worker_costs_no_row(trace, tmp_path):
    out = tmp_path / "out.jsonl"
    with begin(trace, "--jsonl", out, "--timeout", "2") as running:
        wait_for_rows(out, 2)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        running.communicate()

    assert running.returncode == 0
    assert ops(out) == NAMES  # the call was tried again, alone, and timed out


def test_a_full_disk_is_told_and_loses_no_finished_row(quick, tmp_path):
    out = tmp_path / "out.jsonl"

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))

    with begin(quick, "--jsonl", out, preexec_fn=little_room) as running:
        error = running.stderr.read()
    finished = ops(out)

    assert running.returncode == 2
    assert error == (
        f"opreplay run: {out}: File too large; every row before is whole: make room and go on with "
        "--resume\n"
    )
    assert 0 < len(finished) < 12
    with begin(quick, "--jsonl", out, "--resume") as again:
        again.communicate()
    assert again.returncode == 0
    assert len(ops(out)) == len(set(ops(out))) == 12
    assert ops(out)[: len(finished)] == finished


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_without_room_is_told(quick, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this system lets nobody mount")
    try:
        with begin(quick, "--jsonl", disk / "out.jsonl") as running:
            error = running.stderr.read()
        assert "No space left on device; every row before is whole" in error
        assert 0 < len(ops(disk / "out.jsonl")) < 12
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    write_some = os.write
    with RowLog(out) as log:
        log.begin(ENVIRONMENT, ("opreplay", "run"), {})
        log.append(row("aten::mm"))
        whole = out.read_bytes()

        def full(descriptor, data):
            if len(data) < 100:
                raise OSError(28, "No space left on device")
            return write_some(descriptor, data[: len(data) - 50])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ValueError, match="No space left on device; every row before is whole"):
            log.append(row("aten::add"))

    assert out.read_bytes() == whole


def test_two_runs_do_not_write_to_one_file(quick, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    with RowLog(out):
        status = main(["run", quick, *HERE, "--no-isolation", "--jsonl", str(out), "--resume"])

    assert status == 2
    assert capsys.readouterr().err == (
        f"opreplay run: {out}: another run is writing to it; wait for it or choose another file\n"
    )


def run_here(quick, out, *more):
    return main(["run", quick, *HERE, "--no-isolation", "--jsonl", str(out), *more])


def test_results_are_not_overwritten(quick, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert run_here(quick, out, "--limit", "1") == 0
    before = out.read_bytes()

    assert run_here(quick, out) == 2
    assert "is there already; go on with --resume" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_torn_last_line_is_cut_off(quick, tmp_path):
    out = tmp_path / "out.jsonl"
    run_here(quick, out, "--limit", "3")
    data = out.read_bytes()
    out.write_bytes(data[:-100])

    assert [row.op for row in read_results(out).rows] == ["aten::relu", "aten::abs"]
    run_here(quick, out, "--limit", "3", "--resume")
    assert ops(out) == ["aten::relu", "aten::abs", "aten::neg"]
    assert out.read_bytes()[: data.rfind(b"\n", 0, -1)] == data[: data.rfind(b"\n", 0, -1)]


def test_a_resumed_run_reports_all_rows(quick, tmp_path):
    out, whole = tmp_path / "out.jsonl", tmp_path / "out.json"
    run_here(quick, out, "--shard", "2/2")
    run_here(quick, out, "--resume", "--json", str(whole))

    assert len(json.loads(whole.read_text())["rows"]) == 12
    assert {row.op for row in read_results(out).rows} == set(ops(out))


def test_the_order_of_a_report_is_that_of_the_calls(quick, tmp_path):
    out, whole = tmp_path / "out.jsonl", tmp_path / "out.json"
    run_here(quick, out, "--op", "aten::erf")
    run_here(quick, out, "--resume", "--json", str(whole))

    assert ops(out)[0] == "aten::erf"
    assert json.loads(whole.read_text())["rows"][-1]["op"] == "aten::erf"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seed", "7"], "was begun with options.seed 0, it is 7 now"),
        (["--threads", "2"], "was begun with environment.threads 1, it is 2 now"),
    ],
)
def test_a_run_of_other_options_is_not_resumed(quick, tmp_path, capsys, more, message):
    out = tmp_path / "out.jsonl"
    run_here(quick, out, "--limit", "1")

    assert main(["run", quick, *HERE, *more, "--jsonl", str(out), "--resume"]) == 2
    assert message in capsys.readouterr().err


def test_shards_together_are_the_run(quick, tmp_path):
    parts = []
    for number in (1, 2, 3):
        out = tmp_path / f"{number}.jsonl"
        run_here(quick, out, "--shard", f"{number}/3")
        parts.append(ops(out))

    assert sorted(map(len, parts)) == [4, 4, 4]
    assert len({name for part in parts for name in part}) == 12


def test_devices_share_the_calls(quick, tmp_path):
    out, whole = tmp_path / "out.jsonl", tmp_path / "out.json"
    arguments = ["run", quick, "--time", "0.002", "--threads", "1", "--devices", "cpu,cpu"]

    assert main([*arguments, "--jsonl", str(out), "--json", str(whole)]) == 0

    rows = json.loads(whole.read_text())["rows"]
    assert len({row["signature"] for row in rows}) == len(rows) == 12
    assert {row["ran_on"] for row in rows} == {"cpu (0)", "cpu (1)"}
    assert len(ops(out)) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "name it with --jsonl FILE"),
        (["--devices", "cpu,cpu", "--no-isolation"], "need a worker process each"),
        (["--devices", "cpu", "--device", "cpu"], "leave one of them out"),
        (["--devices", "all"], "there is no accelerator here"),
    ],
)
def test_bad_use_is_one_line_and_status_2(quick, capsys, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: None)

    assert main(["run", quick, *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_malformed_shard_is_refused(quick, capsys):
    with pytest.raises(SystemExit):
        main(["run", quick, "--shard", "9/3"])
    assert "a shard is I/N" in capsys.readouterr().err


def test_all_accelerators_are_named(monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)

    assert _all_devices() == ["cuda:0", "cuda:1"]


def test_a_row_that_turns_out_otherwise_is_read_as_it_was_last(tmp_path):
    out = tmp_path / "out.jsonl"
    with RowLog(out) as log:
        log.begin(ENVIRONMENT, ("opreplay", "run"), {"seed": 0})
        log.append(row("aten::mm"))
        log.append(row("aten::mm", timing=None, reason="crashed", detail="it was this one"))

    (read,) = read_results(out).rows
    assert read.reason == "crashed"
    with RowLog(out, resume=True) as log:
        assert log.done == {("aten::mm", None, None)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my notes\n", "line 1: byte 0: not JSON"),
        ("my notes", "holds something else than rows"),
        ('{"format":"opreplay-results/1"}\n', "this version reads 'opreplay-rows/1'"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path, text, message):
    path = tmp_path / "notes.txt"
    path.write_text(text)

    with pytest.raises(ResultsError, match=message):
        RowLog(path, resume=True)
    assert path.read_text() == text
