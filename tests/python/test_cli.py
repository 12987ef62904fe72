"""The command line: exit statuses, one-line errors, and what each command prints."""

from __future__ import annotations

import gzip
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kineto_events import SHARED_TRACES, TINY_TRACE, event, op, write

from opreplay.cli import _bytes, main

MATMUL = op(
    "aten::mm", types=["float"] * 2, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]],
    values=["", ""],
)  # fmt: skip
HERE = ["--no-isolation", "--device", "cpu", "--time", "0.002"]


def hostile(name, ts=20):
    return op(f"hostile::{name}", types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=ts)


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "trace.json", {"traceEvents": [MATMUL]})


def run_elsewhere(*arguments, **choices):
    """Runs the command in a process of its own, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "opreplay", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        **choices,
    )


def test_run_prints_a_line_for_each_signature_and_the_totals(trace, capsys):
    assert main(["run", str(trace), *HERE]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:6] == ["op", "count", "recorded", "us", "replayed", "us"]
    assert lines[1][:3] == ["aten::mm", "1", "10.00"]
    assert lines[1][-1] == "ok"
    assert ["ok", "1", "1", "0.010", "100.0"] in lines


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ["aten::mm", "aten::relu", "aten::relu_"]),
        (["--op", "aten::relu"], ["aten::relu"]),
        (["--op", "aten::relu_", "--op", "aten::mm"], ["aten::mm", "aten::relu_"]),
        (["--op", "relu"], []),
        (["--match", "relu"], ["aten::relu", "aten::relu_"]),
        (["--match", "relu$"], ["aten::relu"]),
        (["--limit", "2"], ["aten::mm", "aten::relu"]),
        (["--match", "relu", "--limit", "1"], ["aten::relu"]),
    ],
    ids=str,
)
def test_r14_names_patterns_and_limits_have_effect(tmp_path, capsys, flags, names):
    vector = {"types": ["float"], "dims": [[4]], "strides": [[1]], "values": [""]}
    events = [MATMUL, op("aten::relu", ts=20, **vector), op("aten::relu_", ts=40, **vector)]
    path = write(tmp_path / "trace.json", {"traceEvents": events})

    assert main(["run", str(path), *HERE, *flags, "--json", str(tmp_path / "x.json")]) == 0

    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [row["op"] for row in rows] == names


def test_run_writes_results_and_a_table(trace, tmp_path):
    out = tmp_path / "out.json"
    table = tmp_path / "out.csv"

    assert main(["run", str(trace), *HERE, "--raw", "--json", str(out), "--csv", str(table)]) == 0

    results = json.loads(out.read_text())
    (row,) = results["rows"]
    assert results["format"] == "opreplay-results/1"
    assert (row["op"], row["status"]) == ("aten::mm", "ok")
    stat = row["timing"]["host_ns"]
    assert len(stat["raw"]) == min(1000, stat["samples"])
    assert results["environment"]["device"] == "cpu"
    assert table.read_text().splitlines()[1].startswith("aten::mm,")


def test_results_carry_no_samples_unless_asked_for(trace, tmp_path):
    main(["run", str(trace), *HERE, "--json", str(tmp_path / "out.json")])

    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["timing"]["host_ns"]["raw"] is None


def test_failures_are_an_exit_status_under_strict_only(tmp_path):
    trace = write(tmp_path / "t.json", {"traceEvents": [hostile("refuse")]})
    arguments = ["run", str(trace), *HERE, "--import", "hostile_ops"]

    assert main(arguments) == 0
    assert main([*arguments, "--strict"]) == 1


def test_skipped_rows_are_no_failure_under_strict(tmp_path):
    trace = write(tmp_path / "t.json", {"traceEvents": [op("aten::mm")]})

    assert main(["run", str(trace), *HERE, "--strict"]) == 0


def test_run_chooses_calls(tmp_path, capsys):
    events = [MATMUL, hostile("refuse")]
    trace = write(tmp_path / "t.json", {"traceEvents": events})

    main(["run", str(trace), *HERE, "--op", "aten::mm"])

    assert "hostile" not in capsys.readouterr().out


def test_verbose_lists_assumptions(tmp_path, capsys):
    bare = op("aten::mm", types=["float"] * 2, dims=[[2, 3], [3, 4]])
    trace = write(tmp_path / "t.json", {"traceEvents": [bare]})

    main(["run", str(trace), *HERE])
    quiet = capsys.readouterr().out
    main(["run", str(trace), *HERE, "-v"])

    assert "assumed:" not in quiet
    assert "1 rows rest on assumptions" in quiet
    assert "assumed: " in capsys.readouterr().out


def test_what_a_trace_lacks_is_said_once(tmp_path, capsys):
    events = [op("aten::mm", types=["float"] * 2, dims=[[n, 3], [3, 4]]) for n in (1, 2)]
    trace = write(tmp_path / "t.json", {"traceEvents": events})

    main(["run", str(trace), *HERE])

    assert capsys.readouterr().out.count("records no strides") == 1


def test_a_trace_with_nothing_to_replay_says_so(tmp_path, capsys):
    kernels = [event("gemm", cat="kernel", tid=7, pid=0)]
    trace = write(tmp_path / "t.json", {"traceEvents": kernels})

    assert main(["run", str(trace), *HERE]) == 0
    assert "nothing to replay" in capsys.readouterr().out


def test_a_plan_is_written_and_run(trace, tmp_path, capsys):
    plan = tmp_path / "x.plan.json"

    assert main(["plan", str(trace), "-o", str(plan), "--no-isolation"]) == 0
    assert "1 of 1 signatures can run without the trace" in capsys.readouterr().out
    assert main(["run", str(plan), *HERE]) == 0
    assert "aten::mm" in capsys.readouterr().out


def test_show_prints_the_meaning_of_a_call(trace, capsys):
    assert main(["show", str(trace), "--op", "aten::mm", "--device", "cpu"]) == 0
    assert "aten::mm(Tensor self, Tensor mat2) -> Tensor" in capsys.readouterr().out


def test_inspect_is_a_command(trace, capsys):
    assert main(["inspect", str(trace)]) == 0
    assert "aten::mm" in capsys.readouterr().out


def test_env_prints_the_environment_block(capsys):
    assert main(["env", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"


def test_demo_replays_what_it_has_recorded(tmp_path, capsys):
    assert main(["demo", "-o", str(tmp_path / "demo.json.gz"), "--device", "cpu"]) == 0

    lines = capsys.readouterr().out.splitlines()
    heads = {line.split()[0]: line.split()[-1] for line in lines if line.startswith("aten::")}
    assert heads["aten::embedding"] == heads["aten::scaled_dot_product_attention"] == "ok"
    assert set(heads.values()) == {"ok"}


def unreadable(tmp_path):
    return tmp_path / "missing.json"


def truncated_gzip(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [MATMUL] * 99}).encode())[:-20])
    return path


def json_cut_in_half(tmp_path):
    path = tmp_path / "half.json"
    text = json.dumps({"traceEvents": [MATMUL] * 99})
    path.write_text(text[: len(text) // 2])
    return path


def wrong_file_type(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return path


def empty_file(tmp_path):
    path = tmp_path / "empty.json"
    path.write_bytes(b"")
    return path


def directory(tmp_path):
    return tmp_path


def broken_plan(tmp_path):
    path = tmp_path / "x.plan.json"
    path.write_text('{"format": "opreplay-plan/2", "recorded_on": [], "calls": 3}')
    return path


@pytest.mark.parametrize("command", ["run", "show", "inspect", "plan"])
@pytest.mark.parametrize(
    "make",
    [unreadable, truncated_gzip, json_cut_in_half, wrong_file_type, empty_file, directory],
)
def test_a_file_that_cannot_be_read_is_one_line_and_status_2(tmp_path, capsys, command, make):
    path = make(tmp_path)
    more = {"run": HERE, "plan": ["--no-isolation", "-o", str(tmp_path / "p.json")]}

    assert main([command, str(path), *more.get(command, [])]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"opreplay {command}: ")
    assert error.count("\n") == 1
    assert str(path) in error


def test_a_broken_plan_is_one_line_and_status_2(tmp_path, capsys):
    path = broken_plan(tmp_path)

    assert main(["run", str(path), *HERE]) == 2
    assert f"opreplay run: {path}: calls: expected a list, got 3; write it" in (
        capsys.readouterr().err
    )


def test_calls_of_a_plan_are_bundled(tmp_path, capsys):
    path = write(tmp_path / "trace.json", {"traceEvents": [MATMUL, hostile("dies")]})
    plan, bundle = tmp_path / "x.plan.json", tmp_path / "x.bundle.pt"
    assert main(["plan", str(path), "-o", str(plan), "--no-isolation"]) == 0
    capsys.readouterr()
    assert main(["bundle", str(plan), "-o", str(bundle), "-v"]) == 0
    left_out, total = capsys.readouterr().out.splitlines()
    assert left_out.startswith("left out: hostile::dies: no library here registers")
    assert total == f"{bundle}: 1 of 2 signatures are in the bundle"
    assert bundle.read_bytes()[:16] == b"opreplay-bundle\0"


def test_a_trace_is_no_plan_to_bundle(trace, tmp_path, capsys):
    assert main(["bundle", str(trace), "-o", str(tmp_path / "x")]) == 2
    assert "is no plan; write one with: opreplay plan TRACE" in capsys.readouterr().err


def test_a_plan_of_a_plan_is_refused(tmp_path, capsys):
    path = broken_plan(tmp_path)

    assert main(["plan", str(path), "-o", str(tmp_path / "y.json")]) == 2
    assert "is a plan already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--import", "no_such_module"], "No module named 'no_such_module'"),
        (["--device", "nowhere"], "nowhere"),
        (["--match", "("], "not a regular expression"),
        (["--scope", "nowhere"], "no annotation"),
        (["--top", "0"], "top must be at least 1"),
    ],
)
def test_bad_use_is_one_line_and_status_2(trace, capsys, arguments, message):
    assert main(["run", str(trace), *HERE, *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "0"], "must be more than 0"),
        (["--time", "inf"], "must be more than 0"),
        (["--threads", "0"], "must be at least 1"),
        (["--memory-budget", "much"], "must be a size"),
        (["--json", "/"], "is a directory"),
        (["--json", "nowhere/out.json"], "there is no directory nowhere"),
        (["--level", "top"], "invalid choice"),
    ],
)
def test_a_bad_argument_is_refused_before_anything_runs(trace, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(trace), *arguments])

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_results_file_without_permission_is_refused(trace, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SystemExit):
        main(["run", str(trace), "--json", str(tmp_path / "out.json")])

    assert "permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("100", 100), ("2k", 2048), ("1.5MiB", 3 << 19), ("8GB", 8 << 30), ("1 TiB", 1 << 40)],
)
def test_sizes_are_read(text, size):
    assert _bytes(text) == size


def test_show_without_a_call_left_is_bad_use(trace, capsys):
    assert main(["show", str(trace), "--op", "aten::none"]) == 2
    assert "no operator call is left" in capsys.readouterr().err


def test_an_error_of_the_system_names_the_file(trace, tmp_path, monkeypatch, capsys):
    def full(self, data):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    out = tmp_path / "out.json"

    assert main(["run", str(trace), *HERE, "--json", str(out)]) == 2
    assert f"opreplay run: {out}: No space left on device" in capsys.readouterr().err


def test_ctrl_c_while_reading_is_status_130(trace, monkeypatch):
    def interrupted(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("opreplay.cli.read_shown", interrupted)

    assert main(["run", str(trace), *HERE]) == 130


def test_ctrl_c_keeps_finished_rows_and_leaves_no_process(tmp_path):
    relu = op("aten::relu", types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=15)
    events = [MATMUL, relu, hostile("hang")]
    trace = write(tmp_path / "t.json", {"traceEvents": events})
    out = tmp_path / "out.json"
    command = ["-m", "opreplay", "run", str(trace), "--import", "hostile_ops", "--json", str(out)]
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        # A job in the background of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not running.stdout.readline().startswith("aten::mm"):
            pass
        time.sleep(1)  # now the call that hangs is under way
        workers = children.read_text().split()
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()

    assert running.returncode == 130
    assert "Interrupted after 2 of 3 signatures" in rest
    rows = json.loads(out.read_text())["rows"]
    assert [row["op"] for row in rows] == ["aten::mm", "aten::relu"]
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_an_interrupted_demo_is_status_130(monkeypatch, tmp_path):
    monkeypatch.setattr("opreplay.cli._replay", lambda *_, **__: (None, True))
    from opreplay import demo

    monkeypatch.setattr(demo, "record_decode", lambda path, device: None)
    monkeypatch.setattr("opreplay.cli.Replay", lambda *_, **__: io.StringIO())

    assert main(["demo", "-o", str(tmp_path / "x.json")]) == 130


def test_a_crash_does_not_end_the_run(tmp_path):
    trace = write(tmp_path / "t.json", {"traceEvents": [MATMUL, hostile("abort")]})

    done = run_elsewhere("run", trace, "--import", "hostile_ops", "--device", "cpu")

    assert done.returncode == 0
    assert "failed: crashed: it ended its process with SIGABRT" in done.stdout


def test_a_reader_that_stops_early_is_no_error(trace):
    command = f"{sys.executable} -m opreplay run {trace} --device cpu | true"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)

    assert done.stderr == ""


def test_help_lists_only_commands_that_exist(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])

    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("    ")}
    assert {"demo", "inspect", "show", "plan", "bundle", "run", "compare", "env"} <= listed


@pytest.mark.skipif(not SHARED_TRACES.exists(), reason="needs the shared traces")
@pytest.mark.parametrize(
    "name",
    [
        "tracelens__gpu-only-mi210",
        "hta__large-integers",
        "param__et-gpt2-1.1.0",
        "param__et-resnet-1gpu-1.1.1",
        "kineto__tb-resnet50-input-dims-v100",
    ],
)
def test_a_trace_that_holds_nothing_to_replay_says_why(name, capsys):
    status = main(["run", str(SHARED_TRACES / f"{name}.json.gz"), *HERE, "--limit", "3"])

    captured = capsys.readouterr()
    assert status in (0, 2)
    assert captured.out + captured.err
    assert "Traceback" not in captured.err


@pytest.mark.skipif(not TINY_TRACE.exists(), reason="needs the recorded trace")
def test_a_recorded_trace_runs_whole(capsys):
    assert main(["run", str(TINY_TRACE), *HERE]) == 0
    assert "failed" not in capsys.readouterr().out


def test_the_module_runs_as_a_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["opreplay", "env", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("opreplay", run_name="__main__")

    assert stopped.value.code == 0
    assert "built_for_torch" in capsys.readouterr().out


def test_graph_launches_beside_a_plan_are_refused(tmp_path, capsys):
    path = broken_plan(tmp_path)
    assert main(["run", str(path), "--graph-launches", "x.json"]) == 2
    assert "is a plan; --graph-launches goes with a trace" in capsys.readouterr().err


def test_the_page_of_a_run_holds_its_rows(trace, tmp_path):
    page = tmp_path / "page.html"
    assert main(["run", str(trace), *HERE, "--limit", "1", "--html", str(page)]) == 0
    assert '"op": "aten::mm"' in page.read_text()
