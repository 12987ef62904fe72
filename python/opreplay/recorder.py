"""Records a trace that can be replayed: a path comes in, the profiler runs with the right flags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

__all__ = ["record"]


@contextmanager
def record(path: str | Path) -> Iterator[None]:
    """Records the operators that run inside, with the types, dims, strides and values of inputs.

    The trace is written when the block ends without an error; contents of tensors are not kept.

    Args:
        path: Where the trace goes: ``.json``, or ``.json.gz`` for a compressed one.

    Raises:
        ValueError: `path` has another ending.
    """
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise ValueError(f"{target} is no name of a trace; it must end in .json or .json.gz")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the profiler keeps only kernels that have ended
    profiler.export_chrome_trace(str(target))
