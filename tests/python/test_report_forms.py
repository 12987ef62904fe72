"""One run in every form, each read back: JSON, lines of JSON, CSV, a page, a data frame."""

from __future__ import annotations

import csv
import json
import re

import pytest
from kineto_events import SHARED_TRACES, TINY_TRACE

from opreplay.cli import main
from opreplay.report.results_file import read_results

VLLM = SHARED_TRACES / "local__vllm-cpu-dense-qwen2.json.gz"


@pytest.mark.parametrize("trace", [TINY_TRACE, VLLM], ids=["tiny", "vllm"])
def test_every_form_of_a_run_holds_the_same_rows(trace, tmp_path, capsys):
    if not trace.exists():
        pytest.skip("the shared traces are not here")
    files = {form: tmp_path / f"out.{form}" for form in ("json", "jsonl", "csv", "html")}
    written = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    chosen = ["--match", "^aten::(embedding|addmm|mm|gelu)$", "--limit", "6"]
    here = ["--device", "cpu", "--no-isolation", "--time", "0.002"]
    assert main(["run", str(trace), *chosen, *here, *written]) == 0
    printed = capsys.readouterr().out

    rows = json.loads(files["json"].read_text())["rows"]
    ops = [row["op"] for row in rows]
    assert rows
    lines = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert [line["op"] for line in lines[1:]] == ops
    with files["csv"].open() as stream:
        table = list(csv.DictReader(stream))
    assert [(line["op"], line["inputs"]) for line in table] == [
        (row["op"], row["inputs"]) for row in rows
    ]
    data = re.search(r'<script id="data".*?>(.*?)</script>', files["html"].read_text(), re.DOTALL)
    assert [row["op"] for row in json.loads(data[1])] == ops
    for form in ("json", "jsonl"):
        report = read_results(files[form])
        assert [row.op for row in report.rows] == ops
        assert [row.timing and row.timing.host_ns.median for row in report.rows] == [
            row["timing"] and row["timing"]["host_ns"]["median"] for row in rows
        ]
        pytest.importorskip("pandas")
        assert list(report.to_pandas()["op"]) == ops

    again = {form: tmp_path / f"again.{form}" for form in ("csv", "html")}
    words = [word for form, path in again.items() for word in (f"--{form}", str(path))]
    assert main(["report", str(files["json"]), *words]) == 0
    assert capsys.readouterr().out == printed
    for form, path in again.items():
        assert path.read_text() == files[form].read_text()
