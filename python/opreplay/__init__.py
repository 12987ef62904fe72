"""Replays operator calls out of PyTorch profiler traces and measures them from a C++ loop.

Importing this package loads neither torch nor the extension, so that traces can be read without
them; what needs them is loaded when it is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from opreplay.ab import Side, ab
from opreplay.calls import prepare, resolve
from opreplay.compare import compare
from opreplay.options import ReplayOptions
from opreplay.plan import Plan
from opreplay.plan_file import PlanError, read_plan, write_plan
from opreplay.replay import make_plan, replay
from opreplay.report.comparison import Comparison
from opreplay.report.results import Report
from opreplay.report.results_file import read_results
from opreplay.report.row import Row
from opreplay.resolve.namespaces import register_namespace
from opreplay.stat import Stat, Timing, TimingOptions
from opreplay.trace import (
    CallGroup,
    RecordedCall,
    Selection,
    Skipped,
    Trace,
    TraceError,
    read_trace,
)

if TYPE_CHECKING:
    from opreplay._C import Graph
    from opreplay.recorder import record
    from opreplay.timing import do_bench, time_call, time_callable

__all__ = [
    "CallGroup",
    "Comparison",
    "Graph",
    "Plan",
    "PlanError",
    "RecordedCall",
    "ReplayOptions",
    "Report",
    "Row",
    "Selection",
    "Side",
    "Skipped",
    "Stat",
    "Timing",
    "TimingOptions",
    "Trace",
    "TraceError",
    "ab",
    "compare",
    "do_bench",
    "make_plan",
    "prepare",
    "read_plan",
    "read_results",
    "read_trace",
    "record",
    "register_namespace",
    "replay",
    "resolve",
    "time_call",
    "time_callable",
    "write_plan",
]

_OF_TIMING = ("do_bench", "time_call", "time_callable")


def __getattr__(name: str) -> Any:
    """Loads what needs torch when it is first asked for."""
    if name == "_C":
        return _load_extension()
    if name == "Graph":
        return _load_extension().Graph
    if name in _OF_TIMING:
        return getattr(importlib.import_module("opreplay.timing"), name)
    if name == "record":
        return importlib.import_module("opreplay.recorder").record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load_extension() -> Any:
    """Imports the extension and checks that it was built for the torch which is here.

    Raises:
        ImportError: It was built for another one; the text says what to do.
    """
    import torch  # first: the extension links to torch's libraries, which importing torch loads

    remedy = (
        f"the extension of opreplay was not built for torch {torch.__version__}: build it again "
        "here with pip install --no-build-isolation --force-reinstall --no-deps opreplay"
    )
    try:
        extension = importlib.import_module("opreplay._C")
    except ImportError as error:
        raise ImportError(f"{remedy} ({error})") from error
    built = extension.build_torch_version
    if _minor(built) != _minor(torch.__version__):
        del sys.modules["opreplay._C"]
        vars(sys.modules[__name__]).pop("_C", None)
        raise ImportError(f"{remedy} (it was built for torch {built})")
    return extension


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
