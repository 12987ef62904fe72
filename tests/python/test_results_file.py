"""Results files: what is written can be read back, and a malformed entry is named."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from made_reports import lost, report, row, stat, timing

from opreplay.outcome import ResultCheck
from opreplay.report.results_file import ResultsError, read_results
from opreplay.trace import RecordedTimes
from opreplay.trace.call import Point
from opreplay.trace.steps import parse_step

FULL = row(
    overload="out", inputs="float[2,3]", step="decode", count=3,
    batch=parse_step("step[DECODE bs=2]"), device=RecordedTimes(1.0, 2.0, 0.5), in_graph=True,
    kernels_recorded=(("gemm", 2),), kernels_us={"gemm": 1.5}, bytes=72, flops=96,
    kernels_replayed=(("gemm", 1),),
    schemas_rejected=(("aten::mm.out", "too many"),),
    detail="a detail", assumptions=("a guess",), recipe="zipf", schema="aten::mm(Tensor self)",
    ran_on="cuda:1", point=Point("abc", (("num_seqs", "8"),)),
    outputs=ResultCheck(True, False, None, "it differs"), timing=replace(
        timing(stat(raw=[1.0, 2.0]), hot=stat()), cold_us=stat(), latency_us=stat(),
        launch_bound=True, graph_gain=1.5, gbps=2.5,
    ),
)  # fmt: skip


def test_a_report_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "out.json"
    written = report(FULL, lost(), cuda="13.0", libraries={"vllm": "1"}, memory=None)
    written.write_json(path)

    assert read_results(path) == written


def test_the_test_above_fills_every_field_that_a_row_has():
    plain = row(reason=None)
    empty = {f.name for f in fields(plain) if getattr(FULL, f.name) == getattr(plain, f.name)}

    assert empty == {"op", "resolved_op", "signature", "host", "reason"}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("rows", 0, "count"), -1, r"rows\[0\].count: expected a whole number from 0, got -1"),
        (("rows", 0, "reason"), "tired", r"rows\[0\].reason: expected one of metadata_missing"),
        (("rows", 0, "timing", "host_ns", "raw"), "1", r"host_ns.raw: expected a list"),
        (("environment", "libraries"), 3, r"environment.libraries: expected an object, got 3"),
        (("rows",), {}, r"rows: expected a list"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path, place, value, message):
    content = report(FULL).to_json()
    *path, last = place
    target = content
    for key in path:
        target = target[key]
    target[last] = value
    file = tmp_path / "out.json"
    file.write_text(json.dumps(content))

    with pytest.raises(ResultsError, match=message):
        read_results(file)
