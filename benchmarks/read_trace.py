"""Times reading a trace beside plain gunzip and orjson: `python benchmarks/read_trace.py FOLDER`.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from opreplay._scan import Scanner
from opreplay.trace import read_trace
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


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Returns the shortest of several times [seconds]."""
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def gunzip(path: Path) -> None:
    """Unpacks a file piece by piece, as the reader does."""
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
    parser.add_argument("--repeats", type=int, default=5)
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
        unpack = best_of(args.repeats, lambda: gunzip(path))
        whole = best_of(args.repeats, lambda: load_and_group(path))
        print(f"gunzip alone:   {unpack:.3f} s")
        print(f"load and group: {whole:.3f} s, {whole / unpack:.2f} x gunzip")
        print(f"peak growth:    {peak_growth(path) / 1e6:.1f} MB")
        if args.no_orjson:
            return
        data = gzip.decompress(path.read_bytes())
        alone = best_of(args.repeats, lambda: scan(data))
        objects = best_of(args.repeats, lambda: orjson.loads(data))
        print(f"scanner alone:  {size / alone / 1e6:,.0f} MB/s, {objects / alone:.1f} x orjson")


if __name__ == "__main__":
    main()
