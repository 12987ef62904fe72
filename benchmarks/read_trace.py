"""Times reading a trace beside gunzip and orjson: `python benchmarks/read_trace.py FOLDER`.

The trace is made of real events: those of every Kineto trace in FOLDER, in equal shares, repeated
with shifted times and ids until it has the wanted size.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from opreplay._scan import Scanner
from opreplay.trace import read_trace, source
from opreplay.trace.arguments import LISTS
from opreplay.trace.scanning import new_scanner

_SHIFTED_IDS = ("External id", "external id", "correlation")
_BLOCK = 2000
"""Events taken at once from one trace, so that calls stay beside what they launched."""


def blocks_of(path: Path) -> list[list[dict[str, Any]]]:
    """Returns a trace's events, cut up by time so that each block holds whole calls."""
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    events = document.get("traceEvents", []) if isinstance(document, dict) else document
    events.sort(key=lambda event: event.get("ts", 0))
    return [events[at : at + _BLOCK] for at in range(0, len(events), _BLOCK)]


def mixed_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields events of all traces in turn, without end, each round shifted in time and ids."""
    traces = [blocks for path in sorted(folder.glob("*.json.gz")) if (blocks := blocks_of(path))]
    shift = 0
    while True:
        for blocks in traces:
            for event in blocks[shift % len(blocks)]:
                yield shifted(event, shift)
        shift += 1


def shifted(event: dict[str, Any], shift: int) -> dict[str, Any]:
    """Returns the event a minute and a million ids later for each unit of `shift`."""
    moved = dict(event)
    if isinstance(event.get("ts"), int | float):
        moved["ts"] = event["ts"] + shift * 60_000_000
    if isinstance(event.get("args"), dict):
        moved["args"] = dict(event["args"])
        for key in _SHIFTED_IDS:
            if isinstance(event["args"].get(key), int):
                moved["args"][key] = event["args"][key] + shift * 1_000_000
    return moved


def write_trace(path: Path, folder: Path, size: int) -> tuple[int, float]:
    """Writes a trace of about `size` bytes; returns its size and the share of operators."""
    written = operators = count = 0
    with gzip.open(path, "wb", compresslevel=6) as file:
        written += file.write(b'{"schemaVersion":1,"traceEvents":[\n')
        for event in mixed_events(folder):
            text = orjson.dumps(event)
            written += file.write(text)
            count += 1
            operators += event.get("cat") in ("cpu_op", "Operator")
            if written >= size:
                break
            written += file.write(b",\n")
        written += file.write(b"\n]}\n")
    return written, operators / count


def time_in_turn(repeats: int, runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Returns the times of each of several runs [seconds], which take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: list[float], others: list[float]) -> str:
    """Returns the median and the least of the ratios of times that were measured in turn."""
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    return f"{median(ratios):.2f} x (at best {min(ratios):.2f} x)"


def gunzip_program(path: Path) -> None:
    """Unpacks a file with gzip's own program, to nowhere."""
    subprocess.run(["gunzip", "-c", str(path)], check=True, stdout=subprocess.DEVNULL)


def gunzip_module(path: Path) -> None:
    """Unpacks a file whole, as a script would."""
    with gzip.open(path) as file:
        file.read()


def inflate(path: Path) -> None:
    """Unpacks a file piece by piece with zlib, which drops each piece while the caches hold it."""
    inflater = zlib.decompressobj(wbits=31)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 16):
            inflater.decompress(chunk)


def load_and_group(path: Path) -> None:
    """Does what the bar is set for."""
    read_trace(path).groups()


def scan(data: bytes) -> Scanner:
    """Scans bytes in memory."""
    scanner = new_scanner()
    scanner.feed(data)
    scanner.finish()
    return scanner


def parse_and_walk(data: bytes) -> Counter[tuple[str, str]]:
    """Counts calls the way of analyzers: every event an object, then a look at each of them."""
    document = orjson.loads(data)
    return Counter(
        (event["name"], repr([event.get("args", {}).get(key) for key in LISTS]))
        for event in document["traceEvents"]
        if event.get("cat") in ("cpu_op", "Operator")
    )


def peak_growth(path: Path) -> int:
    """Returns by how much a fresh process grows over its imports while it reads [bytes]."""
    code = (
        "import re, sys, opreplay\n"
        "from pathlib import Path\n"
        "from opreplay.trace import read_trace\n"
        # Not getrusage: its peak outlives exec, and so counts this process.
        "status = lambda: Path('/proc/self/status').read_text()\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s*(\\d+)', status())[1])\n"
        "before = peak(); groups = read_trace(sys.argv[1]).groups(); print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True
    )
    return int(done.stdout) * 1024


def main() -> None:
    """Prints one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of Kineto traces (.json.gz)")
    parser.add_argument("--megabytes", type=int, default=62, help="size of the trace")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-orjson", action="store_true", help="leave out orjson (memory)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        size, share = write_trace(path, args.folder, args.megabytes * 1_000_000)
        trace = read_trace(path)
        print(
            f"trace: {size / 1e6:.1f} MB, {path.stat().st_size / 1e6:.1f} MB gzip, "
            f"{100 * share:.1f} % of the events are operators; {len(trace):,} calls, "
            f"{len(trace.groups()):,} signatures"
        )
        del trace
        times = time_in_turn(
            args.repeats,
            {
                "load and group": lambda: load_and_group(path),
                "gunzip -c": lambda: gunzip_program(path),
                "gzip.open": lambda: gunzip_module(path),
                "zlib alone": lambda: inflate(path),
            },
        )
        whole = times.pop("load and group")
        print(f"load and group: {median(whole):.3f} s, unpacked with {source.zlib.__name__}")
        for name, unpacking in times.items():
            print(f"{name:<16}{median(unpacking):.3f} s; load and group {ratio(whole, unpacking)}")
        print(f"peak growth:    {peak_growth(path) / 1e6:.1f} MB")
        if args.no_orjson:
            return
        data = gzip.decompress(path.read_bytes())
        times = time_in_turn(
            args.repeats,
            {
                "scanner alone": lambda: scan(data),
                "orjson": lambda: orjson.loads(data),
                "orjson and walk": lambda: parse_and_walk(data),
            },
        )
        alone = times.pop("scanner alone")
        print(f"scanner alone:  {size / median(alone) / 1e6:,.0f} MB/s")
        for name, parsing in times.items():
            print(f"{name:<16}{median(parsing):.3f} s, {ratio(parsing, alone)} the scanner's time")


if __name__ == "__main__":
    main()
