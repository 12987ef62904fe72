"""Reads a trace under a progress bar: a path comes in, the trace goes out."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from opreplay.trace import Trace, read_trace

__all__ = ["read_shown"]


def read_shown(path: str, *, graph_launches: str | None = None) -> Trace:
    """Reads a trace; shows the bytes read so far where standard error is a terminal.

    Args:
        path: The file.
        graph_launches: A trace in which the graphs were launched that `path` saw captured.
    """
    trace = _read(path)
    return trace if graph_launches is None else trace.with_graph_launches(_read(graph_launches))


def _read(path: str) -> Trace:
    console = Console(file=sys.stderr, markup=False)
    columns = (TextColumn("Reading"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("read", total=None)
        return read_trace(
            path, progress=lambda done, size: bar.update(task, completed=done, total=size)
        )
