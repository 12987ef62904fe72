"""Comparing two runs: which rows meet, what is said of them, in text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from made_reports import lost, report, row, stat, timing
from rich.console import Console

from opreplay.cli import main
from opreplay.compare import compare
from opreplay.report.comparison import print_comparison

RNG = np.random.default_rng(7)


def timed(op, us, *, noise=0.01, raw=True, **fields):
    """A row whose host time is `us` with some noise."""
    samples = [float(x) for x in 1000 * us * RNG.normal(1, noise, 60)]
    iqr = 1.349 * noise * 1000 * us
    median = float(np.median(samples))
    kept = stat(median=median, iqr=iqr, samples=60, raw=samples if raw else None)
    return row(op, timing=timing(kept), **fields)


def printed(comparison, **choices):
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=160, markup=False), **choices)
    return stream.getvalue()


def by_op(comparison):
    return {row.op: row for row in comparison.rows}


def test_rows_of_one_signature_meet_and_get_a_ratio_and_a_verdict():
    a = report(timed("aten::mm", 10), timed("aten::relu", 2), timed("aten::add", 3))
    b = report(timed("aten::add", 3), timed("aten::mm", 12), timed("aten::relu", 1))

    rows = by_op(compare(a, b))

    assert rows["aten::mm"].verdict == "slower"
    assert rows["aten::mm"].estimate.ratio == pytest.approx(1.2, rel=0.01)
    assert rows["aten::mm"].estimate.low < 1.2 < rows["aten::mm"].estimate.high
    assert (rows["aten::relu"].verdict, rows["aten::add"].verdict) == ("faster", "same")
    assert {row.basis for row in rows.values()} == {"samples"}


def test_the_largest_effect_on_the_total_time_comes_first():
    # 10 % of 2 us in 1,000 calls is 200 us; twice 50 us in one call is 50 us.
    a = report(timed("aten::once", 50), timed("aten::often", 2, count=1000))
    b = report(timed("aten::once", 100), timed("aten::often", 2.2, count=1000))

    often, once = compare(a, b).rows

    assert (often.op, once.op) == ("aten::often", "aten::once")
    assert often.effect_us == pytest.approx(200, rel=0.1)
    assert once.effect_us == pytest.approx(50, rel=0.1)


def test_steps_of_one_signature_are_rows_of_their_own():
    a = report(timed("aten::mm", 1, step="decode"), timed("aten::mm", 9, step="prefill"))
    b = report(timed("aten::mm", 9, step="prefill"), timed("aten::mm", 1, step="decode"))

    assert {row.verdict for row in compare(a, b).rows} == {"same"}


def test_rows_of_one_side_and_rows_without_a_time_are_told():
    a = report(timed("aten::mm", 1), timed("aten::gone", 1), lost())
    b = report(timed("aten::mm", 1), timed("aten::new", 1), lost())

    comparison = compare(a, b)
    text = printed(comparison)

    assert comparison.only_in_a == (("aten::gone", "aten::gone"),)
    assert "only in B: aten::new aten::new" in text
    assert "1 same, 1 not compared, 1 only in A, 1 only in B" in text
    assert "not compared: A skipped (argument_lost)" in text
    assert by_op(comparison)["aten::index"].detail == "A skipped (argument_lost): indices are gone"


def test_results_without_samples_are_compared_on_quantiles_and_it_is_said():
    a = report(timed("aten::mm", 10, raw=False))
    b = report(timed("aten::mm", 15, raw=False))

    comparison = compare(a, b)

    assert (comparison.rows[0].basis, comparison.rows[0].verdict) == ("quantiles", "slower")
    assert "1 rows are compared on quantiles" in printed(comparison)


def test_device_times_are_compared_where_both_have_them():
    hot = [stat(median=us, raw=[us * x for x in RNG.normal(1, 0.01, 60)]) for us in (4.0, 8.0)]
    a = report(row(timing=timing(hot=hot[0])))
    b = report(row(timing=timing(hot=hot[1])))

    (device,) = compare(a, b).rows
    (host,) = compare(a, b, number="host_ns").rows
    (cold,) = compare(a, b, number="cold_us").rows

    assert (device.number, device.a_us, device.b_us) == ("hot_us", 4.0, 8.0)
    assert (host.number, host.a_us) == ("host_ns", 1.0)
    assert (cold.verdict, cold.detail) == (None, "a side has no cold_us")


def test_environments_that_differ_are_told():
    a = report(row(), torch="2.13.0", libraries={"vllm": "1"}, time="now")
    b = report(row(), torch="2.14.0", libraries={"vllm": "2"}, cuda="13.0", time="then")

    comparison = compare(a, b)

    assert comparison.differences() == {
        "torch": ("2.13.0", "2.14.0"), "libraries.vllm": ("1", "2"), "cuda": (None, "13.0"),
    }  # fmt: skip
    assert "Note: torch differs: A has 2.13.0, B has 2.14.0" in printed(comparison)
    assert "A has nothing, B has 13.0" in printed(comparison)


def test_what_whole_runs_differ_by_is_told_with_many_rows():
    names = [f"aten::op{i}" for i in range(20)]
    a = report(*(timed(name, 10) for name in names))
    b = report(*(timed(name, 10 * RNG.lognormal(0, 0.2)) for name in names))

    comparison = compare(a, b)

    assert 0.1 < comparison.between_runs < 0.4
    assert "no reason of a row's own" in printed(comparison)


def test_what_few_rows_or_a_common_shift_leave_open_is_told():
    a = report(timed("aten::mm", 10), timed("aten::add", 5))
    b = report(timed("aten::mm", 6), timed("aten::add", 3))

    text = printed(compare(a, b))

    assert "too few to tell what the runs as a whole differ by" in text
    assert "The median ratio is 0.6" in text
    assert "most rows moved together" in text
    assert "most rows moved together" not in printed(compare(a, a))


def test_few_rows_can_be_printed():
    reports = [report(*(timed(f"aten::op{i}", 10) for i in range(5))) for _ in "ab"]

    assert "... and 3 rows with less effect" in printed(compare(*reports), limit=2)


@pytest.fixture
def files(tmp_path):
    """Results of two runs; in the second, one of two operators takes 20 % longer."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    report(timed("aten::mm", 10), timed("aten::add", 5)).write_json(paths[0])
    report(timed("aten::mm", 12), timed("aten::add", 5)).write_json(paths[1])
    return [str(path) for path in paths]


def test_the_command_prints_and_writes_the_comparison(files, tmp_path, capsys):
    out, table = tmp_path / "c.json", tmp_path / "c.csv"

    assert main(["compare", *files, "--json", str(out), "--csv", str(table)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["op", "count", "A", "us"]
    assert (lines[1].split()[0], lines[1].split()[-1]) == ("aten::mm", "slower")
    written = json.loads(out.read_text())
    assert written["format"] == "opreplay-comparison/1"
    assert written["verdicts"] == {"slower": 1, "same": 1}
    assert written["rows"][0]["op"] == "aten::mm"
    with table.open(newline="") as stream:
        first, _ = csv.DictReader(stream)
    assert (first["op"], first["verdict"]) == ("aten::mm", "slower")
    assert float(first["ratio"]) == pytest.approx(1.2, rel=0.01)


@pytest.mark.parametrize(("limit", "status"), [("5%", 1), ("0.05", 1), ("50%", 0)])
def test_a_slower_row_is_an_exit_status_if_asked_for(files, capsys, limit, status):
    assert main(["compare", *files, "--fail-if-slower", limit]) == status
    assert ("slower by" in capsys.readouterr().out) == bool(status)


def test_a_faster_row_is_no_failure(files):
    assert main(["compare", *reversed(files), "--fail-if-slower", "1%"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "byte 1: not JSON"),
        ('{"format": "opreplay-plan/1"}', "format is 'opreplay-plan/1', this version reads"),
        ('{"format": "opreplay-results/1", "rows": [{}]}', "rows[0]: expected an object with"),
    ],
)
def test_a_file_without_results_is_one_line_and_status_2(files, tmp_path, capsys, text, message):
    bad = tmp_path / "bad.json"
    bad.write_text(text)

    assert main(["compare", files[0], str(bad)]) == 2

    error = capsys.readouterr().err
    assert str(bad) in error
    assert message in error
    assert "write it with: opreplay run TRACE --json FILE" in error
    assert error.count("\n") == 1


def test_a_missing_file_is_named(files, capsys):
    assert main(["compare", files[0], "nowhere.json"]) == 2
    assert "nowhere.json: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["0", "much", "-5%"])
def test_a_share_is_a_positive_number(files, capsys, share):
    with pytest.raises(SystemExit):
        main(["compare", *files, f"--tolerance={share}"])
    assert "must be a share" in capsys.readouterr().err


def test_a_tolerance_of_nothing_is_refused():
    with pytest.raises(ValueError, match="tolerance must be more than 0"):
        compare(report(), report(), tolerance=0)


def test_environments_of_one_machine_do_not_differ():
    assert compare(report(row()), replace(report(row()), command=())).differences() == {}
