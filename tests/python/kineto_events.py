"""Builds Kineto events and trace files by hand; times are microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from opreplay.trace import Trace, read_trace

Json = dict[str, Any]

SHARED_TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
TINY_TRACE = Path(__file__).parents[1] / "data" / "tiny.json.gz"


def event(name="aten::mm", *, ts=0, dur=10, tid=1, pid=1, cat="cpu_op", **args) -> Json:
    """Builds a complete event; `args` are its fields, with spaces written as underscores."""
    fields = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
        "args": fields,
    }  # fmt: skip


def op(name="aten::mm", *, types=None, dims=None, strides=None, values=None, **rest) -> Json:
    """Builds an operator event; lists that are None are not recorded."""
    built = event(name, **rest)
    for key, entries in {
        "Input type": types,
        "Input Dims": dims,
        "Input Strides": strides,
        "Concrete Inputs": values,
    }.items():
        if entries is not None:
            built["args"][key] = entries
    return built


def launch(name="cudaLaunchKernel", *, correlation, **rest) -> Json:
    """Builds a call of the GPU's runtime."""
    return event(name, cat="cuda_runtime", correlation=correlation, **rest)


def kernel(name="gemm", *, correlation=None, cat="kernel", **rest) -> Json:
    """Builds a GPU event."""
    fields = {} if correlation is None else {"correlation": correlation}
    return event(name, cat=cat, pid=0, tid=7, **fields, **rest)


def write(path: Path, document: Any) -> Path:
    """Writes `document` as JSON, or as it is where it is bytes; gzip where the name says so."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def trace_of(tmp_path: Path, *events: Json) -> Trace:
    """Reads a trace that holds `events`."""
    return read_trace(write(tmp_path / "trace.json", {"traceEvents": list(events)}))


def calls_of(tmp_path: Path, *events: Json) -> dict[str, Any]:
    """Returns the calls of a trace by name; later ones replace earlier ones."""
    return {call.name: call for call in trace_of(tmp_path, *events).calls()}
