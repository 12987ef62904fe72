"""Two sides in turn: error rates on a synthetic clock, real workers, and a user's kernels."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from kineto_events import op, write
from made_reports import ENVIRONMENT
from synthetic_clock import SyntheticMachine, planned

import opreplay
from opreplay.ab import Side, _interpreter, ab, conclude, read_replacement, read_side
from opreplay.cli import main
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome
from opreplay.replay import Greeting
from opreplay.rounds import run_rounds, summary, take_in_turn
from opreplay.stat import TimingOptions
from opreplay.trace import read_trace

MATMUL = op(
    "aten::mm", types=["float"] * 2, dims=[[64, 64], [64, 64]], strides=[[64, 1]] * 2,
    values=["", ""],
)  # fmt: skip
GELU = op(
    "aten::gelu", types=["float", ""], dims=[[4], []], strides=[[1], []], values=["", ""], ts=20
)
FAST = ["--time", "0.002", "--device", "cpu", "--threads", "1"]
OPTIONS = ReplayOptions(
    device="cpu", timing=TimingOptions(time_s=0.002), imports=("slow_ops",), isolation=False,
    threads=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def threads():
    """Some tests run calls in this process, on one thread: neighbours hold the others up."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def verdicts(machine, ops, *, rounds=20):
    calls = [planned(name) for name in ops]
    played = run_rounds(calls, machine.play, rounds=rounds)
    rows = conclude(calls, played, (ENVIRONMENT, ENVIRONMENT), tolerance=0.02).rows
    return {row.op: row.verdict for row in rows}


def test_equal_sides_are_the_same_in_95_of_100_rows():
    found = verdicts(SyntheticMachine(seed=1), [f"aten::op{i}" for i in range(1000)])

    assert Counter(found.values())["same"] >= 950


@pytest.mark.parametrize(("factor", "least"), [(1.20, 20), (1.05, 18)])
def test_one_slowed_operator_is_found(factor, least):
    found = wrong = 0
    for seed in range(20):
        machine = SyntheticMachine(seed)
        machine.slow = {"aten::op7": factor}
        by_op = verdicts(machine, [f"aten::op{i}" for i in range(50)])
        found += by_op.pop("aten::op7") == "slower"
        wrong += sum(verdict in ("slower", "faster") for verdict in by_op.values())

    assert found >= least
    assert wrong <= 0.05 * (found + wrong)


def test_the_side_that_begins_changes_and_both_never_run_at_once():
    order = []

    def take(side):
        order.append(side)
        return Outcome(timing=SyntheticMachine(0)._outcome(100.0).timing)

    for number in range(3):
        take_in_turn(lambda: take("a"), lambda: take("b"), number=number)

    assert "".join(order) == "abbaab"


def test_a_call_that_failed_is_played_no_more():
    seen = []

    def play(job, number):
        seen.append((job, number))
        good = SyntheticMachine(0).play(planned("aten::op"), number)
        failed = Outcome(reason="failed", detail="no")
        return take_in_turn(lambda: good.a, lambda: failed if job == "bad" else good.b, number=0)

    good, bad = run_rounds(["good", "bad"], play, rounds=3)

    assert (len(good), len(bad)) == (3, 1)
    assert seen == [("good", 0), ("bad", 0), ("good", 1), ("good", 2)]
    assert bad[0].failed
    assert summary([one.b for one in bad]).reason == "failed"


def test_the_rounds_of_a_side_are_summed_up_by_their_medians():
    outcomes = [SyntheticMachine(seed)._outcome(100.0) for seed in range(3)]
    medians = [outcome.timing.host_ns.median for outcome in outcomes]

    stat = summary(outcomes).timing.host_ns

    assert stat.raw == medians
    assert stat.median == sorted(medians)[1]
    assert stat.samples == 60
    with pytest.raises(ValueError, match="at least one round"):
        summary([])


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "trace.json", {"traceEvents": [MATMUL, GELU]})


def test_two_environments_are_timed_by_a_worker_each(trace, tmp_path, capsys):
    plan, out = tmp_path / "x.plan.json", tmp_path / "out.json"
    main(["plan", str(trace), "-o", str(plan), "--no-isolation"])
    sides = ["--a", "OMP_NUM_THREADS=1", "--b", "OMP_NUM_THREADS=2", "--b", sys.executable]

    status = main(["ab", str(plan), *FAST, *sides, "--rounds", "6", "--json", str(out)])

    written = json.loads(out.read_text())
    assert status == 0
    assert written["environment_differences"] == {"variables.OMP_NUM_THREADS": {"a": "1", "b": "2"}}
    assert {(row["op"], row["basis"]) for row in written["rows"]} == {
        ("aten::mm", "pairs"), ("aten::gelu", "pairs"),
    }  # fmt: skip
    assert "variables.OMP_NUM_THREADS differs: A has 1, B has 2" in capsys.readouterr().out


def test_a_slow_kernel_is_slower_and_computes_the_same(trace):
    comparison = ab(trace, replacements={"aten::mm": "slow::mm_late"}, options=OPTIONS)

    (row,) = comparison.rows
    assert (row.op, row.verdict, row.basis) == ("aten::mm", "slower", "pairs")
    assert row.estimate.ratio > 10
    assert row.outputs.within


@pytest.mark.parametrize("isolation", [True, False])
def test_a_python_function_replaces_an_operator(trace, isolation):
    options = ReplayOptions(
        device="cpu", timing=TimingOptions(time_s=0.002), isolation=isolation, threads=1
    )

    comparison = ab(
        trace,
        replacements={"aten::mm": "slow_ops:mm_late", "aten::gelu": "slow_ops:gelu"},
        options=options,
        rounds=8,
    )

    rows = {row.op: row for row in comparison.rows}
    assert rows["aten::mm"].verdict == "slower"
    assert rows["aten::gelu"].verdict is not None
    assert all(row.outputs.within for row in rows.values())


def test_a_kernel_that_computes_something_else_is_exit_status_1(trace, capsys):
    replaced = ["--replace", "aten::mm=slow_ops:mm_wrong", "--no-isolation", "--rounds", "6"]

    assert main(["ab", str(trace), *FAST, *replaced]) == 1
    assert "output 0 differs: Mismatched elements: 4096 / 4096" in capsys.readouterr().out
    assert main(["ab", str(trace), *FAST, *replaced, "--check", "0,2"]) == 0


def test_an_argument_that_is_written_to_is_an_output(tmp_path):
    add = op(
        "aten::add_", types=["float", "float", "Scalar"], dims=[[4], [4], []],
        strides=[[1], [1], []], values=["", "", "1"],
    )  # fmt: skip
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": [add]}))

    def outputs(function):
        replacements = {"aten::add_": f"slow_ops:{function}"}
        (row,) = ab(trace, replacements=replacements, options=OPTIONS, rounds=6).rows
        return row.outputs

    assert outputs("add_inplace").within
    assert "output 1 differs" in outputs("add_elsewhere").detail


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("slow_ops:mm_raises", "B failed (failed): RuntimeError: no kernel for this shape"),
        ("slow::mm_short", "no overload of slow::mm_short takes the 2 arguments"),
        ("slow::nothing", "no library here registers it"),
    ],
)
def test_a_kernel_that_cannot_be_called_fails_its_row(trace, kernel, message):
    (row,) = ab(trace, replacements={"aten::mm": kernel}, options=OPTIONS, rounds=6).rows

    assert row.verdict is None
    assert message in row.detail


@pytest.mark.parametrize(
    ("event", "options", "message"),
    [
        (op("aten::mm"), OPTIONS, "A skipped (metadata_missing)"),
        (MATMUL, replace(OPTIONS, memory_budget=1), "A skipped (over_memory_budget)"),
    ],
)
def test_a_call_that_cannot_be_made_is_not_compared(tmp_path, event, options, message):
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": [event]}))
    replacements = {"aten::mm": "slow_ops:mm_late"}

    (row,) = ab(trace, replacements=replacements, options=options, rounds=6).rows

    assert row.verdict is None
    assert row.detail.startswith(message)


def test_a_plain_function_is_replaced_by_another(tmp_path):
    plain = op("plain::double", types=["float"], dims=[[4]], strides=[[1]], values=[""])
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": [plain]}))
    options = replace(OPTIONS, namespaces={"plain": ("plain_ops",)})

    (row,) = ab(
        trace, replacements={"plain::double": "plain_ops:double"}, options=options, rounds=6
    ).rows

    assert row.outputs.within
    assert row.verdict is not None


def test_a_crash_costs_its_row_only(tmp_path):
    abort = op("hostile::abort", types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=40)
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": [MATMUL, abort]}))
    options = ReplayOptions(
        device="cpu", timing=TimingOptions(time_s=0.002), imports=("hostile_ops",)
    )

    rows = {row.op: row for row in ab(trace, options=options, rounds=6).rows}

    assert rows["aten::mm"].verdict is not None
    assert rows["hostile::abort"].detail.startswith("A failed (crashed): it ended its process")


FAULTS = """
import resource, torch

def faults(calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(40)
print(faults(10))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are glibc's")
def test_a_worker_keeps_the_memory_of_large_outputs():
    # Each page of 4 KiB anew for each output would be 100,000 faults.
    environment = {**os.environ, **_interpreter(Side()).variables}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1000


def test_what_the_user_sets_of_the_allocator_stays(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "9")
    side = Side(variables={"MALLOC_TRIM_THRESHOLD_": "7"})
    assert _interpreter(side).variables == {"MALLOC_TRIM_THRESHOLD_": "7"}


def test_a_side_is_a_python_variables_or_libraries(tmp_path):
    library = tmp_path / "libmy.so"
    library.touch()
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()

    assert read_side(["X=1=2", str(tmp_path / "venv"), str(library)]) == Side(
        str(python), {"X": "1=2"}, (str(library),)
    )
    assert read_side([]) == Side()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--b", "nowhere"], "nowhere is no environment: pass a virtual environment"),
        (["--b", "nowhere.so"], "nowhere.so: there is no such library"),
        (["--rounds", "3"], "rounds must be at least 6, got 3"),
        (["--b", "X=1", "--no-isolation"], "need a worker process each"),
        (["--b", "X=1", "--replace", "aten::mm=a:b"], "not both"),
        (["--replace", "aten::none=slow_ops:gelu"], "no chosen call of aten::none"),
        (["--replace", "aten::mm=slow_ops:none", "--no-isolation"], "has no attribute 'none'"),
        (["--b", "/bin/false"], "side B: the worker ended with exit code 1"),
    ],
)
def test_bad_use_is_one_line_and_status_2(trace, capsys, arguments, message):
    assert main(["ab", str(trace), *FAST, *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replace", "mm=a:b"], "is no replacement: write aten::x=my::y"),
        (["--check", "1"], "must be two numbers RTOL,ATOL"),
    ],
)
def test_a_bad_argument_is_refused(trace, capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["ab", str(trace), *arguments])
    assert message in capsys.readouterr().err


def test_a_tolerance_of_nothing_is_refused(trace):
    with pytest.raises(ValueError, match="tolerance must be more than 0"):
        ab(trace, tolerance=0)


def test_sides_need_one_version(trace, monkeypatch):
    versions = iter(("0.1.0", "0.1.0", "0.2.0"))  # A is asked for its recipes first
    monkeypatch.setattr(
        "opreplay.isolation.Isolated.greeting",
        lambda self: Greeting(
            opreplay.environment.Environment(
                **{**ENVIRONMENT.to_json(), "opreplay": next(versions)}
            ),
            frozenset(),
        ),
    )
    with pytest.raises(ValueError, match=r"side A has opreplay 0\.1\.0, B has 0\.2\.0"):
        ab(trace, options=ReplayOptions(device="cpu"))


def test_replacements_are_read():
    assert read_replacement("aten::mm=my::mm.fast") == ("aten::mm", "my::mm.fast")
    assert read_replacement("aten::mm=pkg.mod:fn") == ("aten::mm", "pkg.mod:fn")
