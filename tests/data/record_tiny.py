"""Records tiny.json.gz, the trace that the tests read: `python tests/data/record_tiny.py`."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def decode(tokens: torch.Tensor, table: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Runs each kind of argument that the tests name through an operator."""
    hidden = torch.nn.functional.embedding(tokens, table)
    hidden = torch.nn.functional.layer_norm(hidden, [16])
    hidden = torch.nn.functional.linear(hidden, weight) * 0.5
    hidden = torch.cat([hidden, hidden], dim=0)
    many = torch.cat([hidden[:1]] * 31)
    shaped = torch.zeros([1] * 31)
    return hidden.softmax(-1).sum() + many.sum() + shaped.sum()


def main() -> None:
    """Writes the trace beside this file."""
    torch.manual_seed(0)
    tokens, table, weight = torch.arange(4), torch.rand(8, 16), torch.rand(16, 16)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(2):
            with record_function(f"execute_context_0(0)_generation_4({step})"):
                decode(tokens, table, weight)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        document = json.loads(plain.read_text())
    document = {"schemaVersion": 1, "traceEvents": document["traceEvents"]}
    text = json.dumps(document, separators=(",", ":")).encode()
    Path(__file__).with_name("tiny.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main()
