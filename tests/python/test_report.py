"""Reports: rows to JSON, CSV and text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace

import pytest
from kineto_events import kernel, launch, op, trace_of
from rich.console import Console

from opreplay.environment import Environment
from opreplay.report.results import Report, Share, share_of
from opreplay.report.row import Fidelity, Row, status_of
from opreplay.report.show import show_calls
from opreplay.report.terminal import RowPrinter, make_console, print_totals
from opreplay.resolve.resolver import Resolver
from opreplay.stat import Stat, Timing
from opreplay.trace import REASONS, RecordedTimes

STAT = Stat(
    median=1500.0, mean=1600.0, min=1400.0, p5=1410.0, p95=1900.0, iqr=90.0, samples=20,
    discarded=1, stop_reason="relative_error", floor=100.0, at_floor=False, route="loop", raw=None,
)  # fmt: skip
TIMING = Timing(STAT, None, replace(STAT, median=2.5), None, None, None, 1.25)
ENVIRONMENT = Environment(**{field.name: field.name for field in fields(Environment)})


def row(**choices):
    """A row of three calls that was timed, unless a choice says otherwise."""
    return Row(
        **{
            "op": "aten::mm",
            "overload": "",
            "resolved_op": "aten::mm",
            "signature": "0123456789abcdef",
            "step": None,
            "count": 3,
            "host": RecordedTimes(10.0, 32.0, 30.0),
            "device": None,
            "in_graph": False,
            "kernels_recorded": (),
            "bytes": 72,
            "schemas_rejected": (),
            "reason": None,
            "detail": "",
            "assumptions": (),
            "recipe": None,
            "schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
            "timing": TIMING if choices.get("reason") is None else None,
            **choices,
        }
    )


LOST = row(
    op="aten::index",
    signature="1123456789abcdef",
    count=2,
    host=RecordedTimes(5.0, 10.0, 8.0),
    device=RecordedTimes(2.0, 4.0, 4.0),
    reason="argument_lost",
    detail="indices are gone",
    assumptions=("a guess",),
)
CRASHED = row(
    signature="2123456789abcdef",
    reason="crashed",
    detail="SIGSEGV",
    count=1,
    host=RecordedTimes(1.0, 1.0, 1.0),
)


def report(*rows):
    return Report(rows, ENVIRONMENT, ("opreplay", "run", "x.json"))


def printed(*rows, verbose=False, width=120, terminal=False):
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=terminal, color_system=None, markup=False
    )
    printer = RowPrinter(console, verbose=verbose)
    printer.print_header()
    for one in rows:
        printer.print_row(one)
    print_totals(report(*rows), console)
    return stream.getvalue()


def test_reasons_stand_in_the_order_of_their_time():
    few = row(reason="failed", host=RecordedTimes(1.0, 9.0, 9.0), count=1)
    more = row(reason="collective", host=RecordedTimes(1.0, 9.0, 9.0), count=2)
    longer = row(reason="metadata_missing", host=RecordedTimes(1.0, 9.5, 9.5), count=1)
    on_device = row(
        reason="timed_out", host=RecordedTimes(1.0, 1.0, 1.0), device=RecordedTimes(2.0, 2.0, 2.0)
    )
    order = ["timed_out", "metadata_missing", "collective", "failed"]

    assert list(report(few, more, longer, on_device).by_reason()) == order
    text = printed(few, more, longer, on_device)
    assert sorted(order, key=lambda reason: text.rindex(f"\n{reason} ")) == order


@pytest.mark.parametrize("reason", [None, *REASONS])
def test_status_follows_from_the_reason(reason):
    failures = {"failed", "crashed", "timed_out", "recipe_failed"}
    expected = "ok" if reason is None else "failed" if reason in failures else "skipped"

    assert status_of(reason) == expected


def test_a_row_has_either_a_reason_or_a_timing():
    with pytest.raises(ValueError, match="either a reason or a timing"):
        row(timing=None)
    with pytest.raises(ValueError, match="either a reason or a timing"):
        row(reason="failed", timing=TIMING)


def test_a_row_in_json_has_the_fields_of_the_format():
    timed = row(
        device=RecordedTimes(2.0, 6.0, 5.0),
        kernels_recorded=(("gemm", 2),),
        schemas_rejected=(("aten::mm.out()", "out is missing"),),
        assumptions=("a guess",),
        host=RecordedTimes(3.0, 32.0, 30.0),
    )

    assert timed.to_json() == {
        "op": "aten::mm",
        "overload": "",
        "resolved_op": "aten::mm",
        "signature": "0123456789abcdef",
        "inputs": "",
        "step": None,
        "batch": None,
        "count": 3,
        "recorded_us": {
            "host": {"median": 3.0, "total": 32.0, "self_total": 30.0},
            "device": {"median": 2.0, "total": 6.0, "self_total": 5.0},
        },
        "in_graph": False,
        "kernels_recorded": [{"name": "gemm", "count": 2}],
        "kernels_replayed": None,
        "kernels_us": None,
        "kernel_check": {
            "state": "UNKNOWN",
            "why": "no replay of it was profiled on a device",
            "missing": (),
            "extra": (),
        },
        "bytes": 72,
        "flops": None,
        "tflops": None,
        "schemas_rejected": [{"schema": "aten::mm.out()", "why": "out is missing"}],
        "status": "ok",
        "reason": None,
        "detail": "",
        "assumptions": ["a guess"],
        "recipe": None,
        "schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        "outputs": None,
        "ran_on": None,
        "point": None,
        "timing": {
            "host_ns": {
                "median": 1500.0, "mean": 1600.0, "min": 1400.0, "p5": 1410.0, "p95": 1900.0,
                "iqr": 90.0, "samples": 20, "discarded": 1, "stop_reason": "relative_error",
                "floor": 100.0, "at_floor": False, "route": "loop", "raw": None,
            },
            "hot_us": None,
            "cold_us": {
                "median": 2.5, "mean": 1600.0, "min": 1400.0, "p5": 1410.0, "p95": 1900.0,
                "iqr": 90.0, "samples": 20, "discarded": 1, "stop_reason": "relative_error",
                "floor": 100.0, "at_floor": False, "route": "loop", "raw": None,
            },
            "latency_us": None,
            "launch_bound": None,
            "graph_gain": None,
            "gbps": 1.25,
        },
        "fidelity": {
            "of": "host", "recorded_us": 3.0, "hot_us": 1.5, "cold_us": 2.5,
                "recorded_over_hot": 2.0, "cold_over_hot": 2.5 / 1.5,
        },
    }  # fmt: skip


def test_shares_add_self_times_up():
    assert share_of([row(), LOST, CRASHED]) == Share(3, 6, 39.0, 4.0)


def test_a_results_file_has_format_environment_command_rows_and_totals(tmp_path):
    report(row(), LOST, CRASHED).write_json(tmp_path / "x.json")

    written = json.loads((tmp_path / "x.json").read_text())

    assert written["format"] == "opreplay-results/1"
    assert written["environment"]["torch"] == "torch"
    assert written["command"] == ["opreplay", "run", "x.json"]
    assert [one["status"] for one in written["rows"]] == ["ok", "skipped", "failed"]
    assert written["totals"] == {
        "signatures": 3,
        "calls": 6,
        "host_us": 39.0,
        "device_us": 4.0,
        "by_status": {
            "ok": {"count": 1, "calls": 3, "host_us": 30.0, "device_us": 0},
            "failed": {"count": 1, "calls": 1, "host_us": 1.0, "device_us": 0},
            "skipped": {"count": 1, "calls": 2, "host_us": 8.0, "device_us": 4.0},
        },
        "by_reason": {
            "argument_lost": {"count": 1, "calls": 2, "host_us": 8.0, "device_us": 4.0},
            "crashed": {"count": 1, "calls": 1, "host_us": 1.0, "device_us": 0},
        },
    }


def test_a_csv_file_has_one_line_for_each_row(tmp_path):
    report(row(), LOST).write_csv(tmp_path / "x.csv")

    with (tmp_path / "x.csv").open(newline="") as stream:
        timed, lost = csv.DictReader(stream)

    assert (timed["op"], timed["status"], timed["reason"]) == ("aten::mm", "ok", "")
    assert (timed["host_ns"], timed["cold_us"], timed["hot_us"]) == ("1500.0", "2.5", "")
    assert timed["recorded_device_us"] == ""
    assert (float(timed["recorded_over_hot"]), float(timed["cold_over_hot"])) == (
        10 / 1.5,
        2.5 / 1.5,
    )
    assert (lost["recorded_over_hot"], lost["cold_over_hot"]) == ("", "")
    assert (lost["reason"], lost["detail"], lost["host_ns"]) == (
        "argument_lost", "indices are gone", "",
    )  # fmt: skip
    assert lost["recorded_device_self_total_us"] == "4.0"


def test_a_line_shows_op_count_times_and_status():
    lines = printed(row(), LOST).splitlines()

    assert lines[0].split() == [
        "op", "count", "recorded", "us", "replayed", "us", "cold", "us", "rec/rep", "cold/rep",
        "status",
    ]  # fmt: skip
    # 10 / 1.5 and 2.5 / 1.5
    assert lines[1].split() == ["aten::mm", "3", "10.00", "1.50", "2.50", "6.67", "1.67", "ok"]
    assert lines[2].split(maxsplit=3) == [
        "aten::index", "2", "5.00", "skipped: argument_lost: indices are gone",
    ]  # fmt: skip


def test_a_time_near_the_floor_is_marked_and_explained():
    text = printed(row(timing=replace(TIMING, host_ns=replace(STAT, at_floor=True))))

    assert "~1.50" in text
    assert "~ marks 1 of 1 times" in text


def test_on_an_accelerator_device_times_stand_side_by_side():
    timing = replace(TIMING, hot_us=replace(STAT, median=5.0), cold_us=replace(STAT, median=9.0))
    line = printed(row(device=RecordedTimes(8.0, 8.0, 8.0), timing=timing)).splitlines()[1]

    assert line.split() == ["aten::mm", "3", "8.00", "5.00", "9.00", "1.60", "1.80", "ok"]


def test_fidelity_compares_the_times_of_the_same_side():
    device = replace(TIMING, hot_us=replace(STAT, median=5.0))
    assert row().fidelity == Fidelity("host", 10.0, 1.5, 2.5, 10 / 1.5, 2.5 / 1.5)
    # A trace without kernels, replayed on a device: cold is a device's time, the rest the CPU's.
    assert row(timing=device).fidelity == Fidelity("host", 10.0, 1.5, None, 10 / 1.5, None)
    assert row(
        device=RecordedTimes(8.0, 8.0, 8.0), timing=replace(device, cold_us=None)
    ).fidelity == Fidelity("device", 8.0, 5.0, None, 1.6, None)
    untimed = row(host=RecordedTimes(0.0, 0.0, 0.0)).fidelity
    assert (untimed.recorded_over_hot, untimed.cold_over_hot) == (None, 2.5 / 1.5)
    assert LOST.fidelity is None


def test_verbose_lines_list_the_reason_and_the_assumptions():
    text = printed(LOST, verbose=True)

    assert "skipped: argument_lost\n    indices are gone\n    assumed: a guess\n" in text


def test_a_long_name_is_shortened_and_a_terminal_cuts_the_line():
    name = "aten::" + "x" * 80
    long = row(op=name, reason="failed", detail="y" * 300)

    assert name not in printed(long)
    assert "y" * 300 in printed(long)
    assert all(len(line) <= 80 for line in printed(long, width=80, terminal=True).splitlines())


def test_totals_show_shares_by_status_and_reason():
    text = printed(row(), LOST, CRASHED)
    lines = [line.split() for line in text.splitlines()]

    assert ["all", "3", "6", "0.039", "100.0", "0.004", "100.0"] in lines
    assert ["ok", "1", "3", "0.030", "76.9", "0.000", "0.0"] in lines
    assert ["crashed", "1", "1", "0.001", "2.6", "0.000", "0.0"] in lines
    assert "1 rows rest on assumptions" in text


def test_no_rows_have_no_totals():
    assert printed().splitlines() == [printed().splitlines()[0]]


def test_a_pipe_gets_lines_wide_enough_for_a_table(capsys):
    assert make_console().width == 160
    assert make_console(stderr=True).stderr


def shown(tmp_path, *events):
    stream = io.StringIO()
    groups = trace_of(tmp_path, *events).groups()
    show_calls(groups, Resolver(), Console(file=stream, width=140, markup=False))
    return stream.getvalue()


def test_show_prints_every_argument_of_a_resolved_call(tmp_path):
    text = shown(
        tmp_path,
        op("aten::addmm", types=["float", "float", "float", "Scalar", "Scalar"],
           dims=[[4], [2, 3], [3, 4], [], []], strides=[[1], [3, 1], [1, 3], [], []],
           values=["", "", "", "1", "2"]),
    )  # fmt: skip
    lines = [line.split() for line in text.splitlines()]

    assert "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *," in text
    assert ["mat1", "Tensor", "float32", "[2,3]", "[3,1]"] in lines
    assert ["mat2", "Tensor", "float32", "[3,4]", "[1,3]"] in lines
    assert ["beta", "Scalar", "1"] in lines
    assert ["alpha", "Scalar", "2"] in lines


def test_show_marks_guesses(tmp_path):
    text = shown(
        tmp_path,
        op("aten::gelu", types=["float", ""], dims=[[4], []], strides=[[1], []], values=["", ""]),
    )
    lines = [line.split() for line in text.splitlines()]

    assert ["approximate", "str", "'none'", "yes"] in lines
    assert "assumed: approximate: the profiler drops strings" in text


def test_show_prints_lists_and_values_of_torch(tmp_path):
    text = shown(
        tmp_path,
        op("aten::cat", types=["TensorList", "Scalar"], dims=[[[2, 3], [4, 3]], []],
           strides=[[[3, 1], [3, 1]], []], values=["", "0"]),
        op("aten::zeros", types=["ScalarList", "Scalar", "Scalar", "", ""], dims=[[]] * 5,
           strides=[[]] * 5, values=["[2, 3]", "6", "0", "", ""], ts=20),
    )  # fmt: skip
    lines = [line.split() for line in text.splitlines()]

    assert ["tensors", "Tensor[]", "2", "elements", "yes"] in lines
    assert ["[1]", "Tensor", "float32", "[4,3]", "[3,1]"] in lines
    assert any(line[:1] == ["size"] and line[-1] == "[2,3]" for line in lines)
    assert any(line[:1] == ["dtype"] and line[-2:] == ["dtype", "float32"] for line in lines)


def test_show_prints_what_was_recorded_of_a_call_that_cannot_be_resolved(tmp_path):
    text = shown(
        tmp_path,
        op("nobody::op", types=["float", "Scalar"], dims=[[4], []], strides=[[1], []],
           values=["", "3"]),
        op("aten::mm", ts=20),
    )  # fmt: skip
    lines = [line.split() for line in text.splitlines()]

    assert "operator_unresolved: no library here registers nobody::op" in text
    assert ["0", "float", "[4]", "[1]"] in lines
    assert ["1", "Scalar", "[]", "[]", "3"] in lines
    assert "metadata_missing" in text


def test_show_names_the_recorded_times(tmp_path):
    text = shown(
        tmp_path,
        op("aten::mm", types=["float"] * 2, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]],
           ts=0, dur=10, External_id=1),
        launch(ts=1, dur=1, correlation=3),
        kernel(ts=2, dur=5, correlation=3),
    )  # fmt: skip

    assert "1 calls, median 10.00 us" in text


def test_a_data_frame_has_the_columns_and_values_of_the_csv():
    pandas = pytest.importorskip("pandas")
    frame = report(row(), LOST).to_pandas()
    assert list(frame.op) == ["aten::mm", "aten::index"]
    assert list(frame.host_ns.fillna(-1)) == [1500.0, -1]
    assert frame.groupby("status")["count"].sum().to_dict() == {"ok": 3, "skipped": 2}
    assert isinstance(frame, pandas.DataFrame)
