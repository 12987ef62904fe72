"""Compares `opreplay run` with a C++ program on the same calls: prints the ratio of the medians.

The program is `opreplay-run`; each signature is timed by both, one after the other, so that both
see the machine in the same state. Run it with a trace: python benchmarks/embed.py TRACE
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from opreplay.bundle import write_bundle
from opreplay.options import ReplayOptions
from opreplay.plan import Plan
from opreplay.replay import make_plan, replay
from opreplay.stat import TimingOptions
from opreplay.trace import Selection


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--time", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1)
    choices = parser.parse_args()
    options = ReplayOptions(
        device="cpu",
        isolation=False,
        threads=choices.threads,
        timing=TimingOptions(time_s=choices.time, cold=False),
    )
    selection = Selection(ops=tuple(choices.op), limit=choices.limit)
    plan = make_plan(choices.trace, selection, options=options)
    where = [sys.executable, "-m", "opreplay", "--cmake-dir"]
    package = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    tool = package.parents[2] / "bin" / "opreplay-run"
    ratios = []
    print(f"{'op':<40}{'Python us':>12}{'C++ us':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        bundle, results = Path(folder) / "x.bundle.pt", Path(folder) / "x.json"
        for call in plan.calls:
            if write_bundle([call], bundle, options=options).written == 0:
                continue
            (row,) = replay(Plan((call,)), options=options).rows
            command = [tool, bundle, "--time", choices.time, "--json", results]
            threads = {"OMP_NUM_THREADS": str(choices.threads)}
            subprocess.run(
                [*map(str, command)], check=False, capture_output=True, env=environment(threads)
            )
            timing = json.loads(results.read_text())["calls"][0]["timing"]
            if row.timing is None or timing is None:
                print(f"{call.op:<40}{row.detail[:60] or 'failed in C++'}")
                continue
            python, cpp = row.timing.host_ns.median / 1000, timing["median_ns"] / 1000
            ratios.append(cpp / python)
            print(f"{call.op:<40}{python:>12.2f}{cpp:>12.2f}{cpp / python:>8.3f}")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{len(ratios)} signatures: median ratio {middle:.3f}, quartiles {low:.3f}, {high:.3f}")


def environment(more):
    import os

    import torch

    return {**os.environ, "LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib"), **more}


if __name__ == "__main__":
    main()
