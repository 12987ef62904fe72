"""Reads a trace under a progress bar: a path comes in, the trace goes out."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from opreplay.trace import Trace, read_trace

__all__ = ["read_shown"]


def read_shown(path: str) -> Trace:
    """Reads a trace; shows the bytes read so far where standard error is a terminal."""
    console = Console(file=sys.stderr, markup=False)
    columns = (TextColumn("Reading"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("read", total=None)
        return read_trace(
            path, progress=lambda done, size: bar.update(task, completed=done, total=size)
        )
