"""Records a trace that can be replayed: a path comes in, the profiler runs with the right flags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from opreplay import _C
from opreplay.trace.kept_values import add_values

__all__ = ["record"]


@contextmanager
def record(path: str | Path, *, keep_values: int = 0) -> Iterator[None]:
    """Records the operators that run inside, with the types, dims, strides and scalars of inputs.

    The trace is written when the block ends without an error. Values that are kept are those of
    integer and bool tensors: indices, tables, lengths; a replay uses them in place of a recipe's,
    and the tensors of `aten::index`, of which the profiler records nothing, can be made again.

    Args:
        path: Where the trace goes: ``.json``, or ``.json.gz`` for a compressed one.
        keep_values: Keeps the values of tensors of at most so many elements, in the trace; 0 keeps
            none. Each is copied to the host before its call, so times recorded around it are those
            of a slower program; on a GPU that waits for the device, and cannot be done while a
            graph is captured.

    Raises:
        ValueError: `path` has another ending, or `keep_values` is negative.
    """
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise ValueError(f"{target} is no name of a trace; it must end in .json or .json.gz")
    if keep_values < 0:
        raise ValueError(f"{keep_values = } is a number of elements and must not be negative")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    kept: list[_C.KeptArgument] = []
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        if keep_values:
            _C.start_keeping_values(keep_values)
        try:
            yield
        finally:
            if keep_values:
                kept = _C.stop_keeping_values()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the profiler keeps only kernels that have ended
    profiler.export_chrome_trace(str(target))
    if kept:
        add_values(target, kept)
