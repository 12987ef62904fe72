"""Cuts an engine's trace down to the operators of its first steps: TRACE OUT STEPS.

A step lasts until the next one begins. Kept of an event are its name, its time, and what the
profiler recorded of its arguments; metadata of the machine and its environment is dropped.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

RECORDED = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")


def main(trace: str, out: str, count: str) -> None:
    """Writes the shorter trace."""
    events = json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]
    steps = sorted(event["ts"] for event in events if event["name"].startswith("execute_"))
    begin, end = steps[0], steps[int(count)]
    kept = [
        {key: event[key] for key in ("ph", "cat", "name", "dur")}
        | {"pid": 1, "tid": 1, "ts": round(event["ts"] - begin, 3)}
        | {"args": {key: event["args"][key] for key in RECORDED if key in event["args"]}}
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation") and begin <= event["ts"] < end
    ]
    text = json.dumps({"schemaVersion": 1, "traceEvents": kept}, separators=(",", ":")).encode()
    Path(out).write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
