"""Checks a machine with a GPU: its tests, a short benchmark and a trace recorded and replayed here.

Writes device-check.json and device-check.md into the folder given. Needs no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from opreplay import _C, ReplayOptions, Report, Selection, TimingOptions, replay
from opreplay.demo import recorded_step
from opreplay.environment import describe_environment
from opreplay.report.row import Row
from opreplay.stat import Timing
from opreplay.timing import measure_unit, time_callable

ROOT = Path(__file__).resolve().parent.parent
QUICK = TimingOptions(time_s=0.5)
DECODE = ((1, 4096, 4096), (16, 4096, 4096), (64, 4096, 14336))
ENTRIES = 1 << 24
NUMBERS = ("host_ns", "hot_us", "cold_us", "latency_us")


def run_tests() -> dict[str, Any]:
    """Runs the tests that need a GPU; one that is skipped counts as a failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    environment = dict(os.environ, OPREPLAY_REQUIRE_GPU="1")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return {"passed": done.returncode == 0, "output": done.stdout.splitlines()[-40:]}


def operator(name: str, overload: str = "") -> _C.Operator:
    """The overload of an operator."""
    return next(op for op in _C.OperatorIndex().overloads(name) if op.overload == overload)


def timed(*calls: _C.Call) -> Timing:
    """The four numbers of calls as one unit."""
    return measure_unit(calls, QUICK, mode="inference", device="cuda")


def benchmark() -> dict[str, Any]:
    """Times decode-sized products, an elementwise chain and a random fill, against other ways."""
    found: dict[str, Any] = {}
    for m, k, n in DECODE:
        a = torch.ones(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.ones(k, n, device="cuda", dtype=torch.bfloat16)
        entry = timed(_C.Call(operator("aten::mm"), [a, b])).to_json()
        entry["python_loop_ns"] = time_callable(lambda a=a, b=b: torch.mm(a, b), QUICK).median
        entry["do_bench_cudagraph_us"] = triton_time_us(lambda a=a, b=b: torch.mm(a, b))
        found[f"aten::mm {m}x{k}x{n} bf16"] = entry
    x = torch.ones(64, 4096, device="cuda")
    chain = [_C.Call(operator(f"aten::{name}"), [x]) for name in ("relu", "exp", "neg", "sigmoid")]
    found["relu, exp, neg, sigmoid 64x4096"] = timed(*chain).to_json()
    big = torch.empty(ENTRIES, device="cuda")
    fill = _C.Call(operator("opreplay::fill_random_"), [big, 0, 0])
    found["fill_random_ 64 MiB"] = timed(fill).to_json()
    found["memset 64 MiB"] = timed(_C.Call(operator("aten::zero_"), [big])).to_json()
    return found


def triton_time_us(call: Any) -> float | None:
    """What triton's graph benchmark says; None where there is no triton."""
    try:
        from triton.testing import do_bench_cudagraph
    except ImportError:
        return None
    return float(do_bench_cudagraph(call)) * 1000


def replayed_step() -> Report:
    """Records decode steps here and replays them."""
    options = ReplayOptions(device="cuda", timing=TimingOptions(time_s=0.1, warmup_ms=20))
    with recorded_step(device="cuda") as trace:
        return replay(str(trace), Selection(level="outermost"), options=options)


def kernels_line(row: Row) -> str:
    """Whether a call launched the kernels that were recorded."""
    recorded = {name for name, _ in row.kernels_recorded}
    replayed = set(row.kernels_us or {})
    if recorded == replayed:
        return "same"
    lost, new = sorted(recorded - replayed), sorted(replayed - recorded)
    return f"only recorded: {lost}; only replayed: {new}"


def number(stat: dict[str, Any] | None) -> str:
    """A median, marked where it is near the floor."""
    return "" if stat is None else f"{'~' if stat['at_floor'] else ''}{stat['median']:.2f}"


def page(found: dict[str, Any], rows: list[Row]) -> str:
    """The findings as Markdown."""
    environment = found["environment"]
    lines = [
        f"# Device check: {environment['device_name']}",
        "",
        f"torch {environment['torch']}, {environment['system']}; {found['seconds']:.0f} s.",
        f"Tests that need a GPU: {'passed' if found['tests']['passed'] else 'FAILED'}.",
        f"Largest cache: {found['cache_bytes'] / 2**20:.0f} MiB.",
        "",
        f"| what | {' | '.join(NUMBERS)} | route |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in found["benchmark"].items():
        cells = " | ".join(number(entry[key]) for key in NUMBERS)
        route = entry["hot_us"]["route"] if entry["hot_us"] else ""
        lines.append(f"| {name} | {cells} | {route} |")
    lines += ["", "| replayed | status | recorded us | hot us | kernels |", "|---|---|---|---|---|"]
    for row in rows:
        recorded = f"{row.device.median:.2f}" if row.device else ""
        hot = f"{row.timing.hot_us.median:.2f}" if row.timing and row.timing.hot_us else ""
        status = row.status if row.reason is None else f"{row.status}: {row.detail}"
        kernels = kernels_line(row) if row.timing else ""
        lines.append(f"| {row.op} | {status} | {recorded} | {hot} | {kernels} |")
    return "\n".join([*lines, ""])


def main(folder: Path) -> int:
    """Runs everything; returns 0 if the tests passed and no row failed."""
    if not torch.cuda.is_available():
        sys.exit("device-check: torch finds no GPU here")
    begin = time.monotonic()
    tests = run_tests()
    report = replayed_step()
    found = {
        "environment": describe_environment("cuda").to_json(),
        "cache_bytes": _C.DeviceTimer("cuda").cache_bytes,
        "tests": tests,
        "benchmark": benchmark(),
        "replay": report.to_json(),
    }
    found["seconds"] = time.monotonic() - begin
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "device-check.json").write_text(json.dumps(found, indent=2))
    (folder / "device-check.md").write_text(page(found, list(report.rows)))
    print((folder / "device-check.md").read_text())
    return int(not tests["passed"] or any(row.status == "failed" for row in report.rows))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
