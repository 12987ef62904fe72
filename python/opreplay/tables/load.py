"""Expert loads: what a file says of them, and what a table makes of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["LoadStats", "load_stats", "read_histogram"]


@dataclass(frozen=True, slots=True)
class LoadStats:
    """How a routing loads the experts.

    The time of a decode step follows the active experts, whose weights are read; the time of a
    prefill step follows the padded rows, which are computed.
    """

    num_experts: int
    active_experts: int
    """Experts with at least one row."""
    real_rows: int
    """Pairs of a token and an expert."""
    padded_rows: int
    """Rows with each expert padded to whole blocks; the real rows where there are no blocks."""
    max_over_mean: float
    """Rows of the most loaded expert over the mean of all experts; 0 without rows."""
    load_per_rank: tuple[int, ...]
    """Real rows of each rank, which owns as many neighbouring experts as any other."""

    @property
    def padded_over_real(self) -> float:
        """Rows computed for each row asked for; 0 without rows."""
        return self.padded_rows / self.real_rows if self.real_rows else 0.0


def load_stats(
    tokens_per_expert: Tensor, *, padded_rows: int | None = None, ranks: int = 1
) -> LoadStats:
    """Counts up the rows of each expert, ``tokens_per_expert`` [E]."""
    experts = tokens_per_expert.numel()
    if ranks < 1 or experts % ranks:
        raise ValueError(f"expected ranks to divide the {experts} experts, got {ranks}")
    counts = tokens_per_expert.to("cpu", torch.int64)
    real_rows = int(counts.sum())
    return LoadStats(
        num_experts=experts,
        active_experts=int((counts > 0).sum()),
        real_rows=real_rows,
        padded_rows=real_rows if padded_rows is None else padded_rows,
        max_over_mean=int(counts.max()) * experts / real_rows if real_rows else 0.0,
        load_per_rank=tuple(counts.view(ranks, -1).sum(1).tolist()),
    )


def read_histogram(path: str | Path) -> Tensor:
    """Reads the load of each expert, float64 [E] or [layers, E], from a file.

    JSON holds a list, or a list for each layer, or an object with either under ``"counts"``. CSV
    holds one number a line, or a layer a line, or has a header that names ``expert``, ``count`` and
    perhaps ``layer``. An npz file holds one array, or one called ``counts``.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Any]] = {
        ".json": _read_json,
        ".csv": _read_csv,
        ".npz": _read_npz,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected one of {', '.join(readers)}, got '{path.suffix}'")
    try:
        loads = torch.as_tensor(np.asarray(reader(path), dtype=np.float64))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: no table of loads: {error}") from error
    if loads.dim() not in (1, 2) or loads.numel() == 0:
        raise ValueError(f"{path}: expected loads [E] or [layers, E], got {list(loads.shape)}")
    return loads


def _read_json(path: Path) -> Any:
    content = json.loads(path.read_text())
    return content["counts"] if isinstance(content, dict) else content


def _read_npz(path: Path) -> Any:
    with np.load(path) as arrays:
        names = list(arrays)
        if len(names) == 1:
            return arrays[names[0]]
        if "counts" not in names:
            raise ValueError(f"expected one array or one called 'counts', got {names}")
        return arrays["counts"]


def _read_csv(path: Path) -> Any:
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise ValueError("it is empty")
    header = [name.strip().lower() for name in rows[0]]
    if "expert" in header:
        return _from_columns(header, rows[1:])
    values = [[float(cell) for cell in row] for row in rows]
    return [row[0] for row in values] if all(len(row) == 1 for row in values) else values


def _from_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    expert, count = header.index("expert"), header.index("count")
    layer = header.index("layer") if "layer" in header else None
    cells = [
        (int(row[layer]) if layer is not None else 0, int(row[expert]), float(row[count]))
        for row in rows
    ]
    loads = np.zeros((1 + max(cell[0] for cell in cells), 1 + max(cell[1] for cell in cells)))
    for at_layer, at_expert, load in cells:
        loads[at_layer, at_expert] += load
    return loads[0] if layer is None else loads
