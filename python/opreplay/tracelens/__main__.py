"""TraceLens' batched replay: ``python -m opreplay.tracelens FILE`` with its flags, on our corridor.

FILE is a list of replay IR (JSON) or a report's ``ops_unique_args`` sheet (CSV).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from opreplay.isolation import WorkerError
from opreplay.options import ReplayOptions
from opreplay.replay import Replay
from opreplay.report.results import Report
from opreplay.report.terminal import RowPrinter, make_console, print_totals
from opreplay.trace import Selection
from opreplay.trace.event_dicts import read_unique_args, trace_of_events
from opreplay.tracelens.replay_ir import read_replay_ir

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays a file; returns 0, 1 if a row is not ok, 2 for bad use or an unreadable file."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    try:
        return _replay(options)
    except (ValueError, OSError, ImportError, WorkerError) as error:
        print(f"opreplay.tracelens: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m opreplay.tracelens",
        description="Replay TraceLens' replay IR, or its ops_unique_args sheet, and time it.",
    )
    parser.add_argument(
        "repro_file", help="list of what get_repro_info() returned (.json), or the sheet (.csv)"
    )
    parser.add_argument(
        "--device", help="default: the accelerator, else cpu; cuda without one is cpu"
    )
    parser.add_argument(
        "--op-filter", metavar="REGEX",
        help="replay operators in whose name this occurs; '^aten::add$' is one exact name",
    )  # fmt: skip
    parser.add_argument("--op-limit", type=int, metavar="N", help="replay so many, once filtered")
    parser.add_argument("--stop-on-error", action="store_true", help="end after the first failure")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every assumption")
    parser.add_argument(
        *("--import", "-i"), dest="imports", action="append", default=[], metavar="MODULE",
        help="import it first: it registers operators or initializers; repeatable",
    )  # fmt: skip
    return parser


def _replay(options: argparse.Namespace) -> int:
    console = make_console()
    device = options.device
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        console.print(f"There is no {device} here: running on the CPU.")
        device = "cpu"
    read = read_unique_args if options.repro_file.endswith(".csv") else read_replay_ir
    trace = trace_of_events(read(options.repro_file), name=options.repro_file)
    if options.imports:
        sys.path.append(str(Path.cwd()))
    run = Replay(
        trace,
        Selection(match=options.op_filter, limit=options.op_limit),
        options=ReplayOptions(
            device=device,
            imports=tuple(options.imports),
            allow_mismatch=True,
            stop_on_error=options.stop_on_error,
        ),
    )
    printer = RowPrinter(console, verbose=options.verbose)
    printer.print_header()
    rows = []
    with closing(run):
        for row in run.rows():
            rows.append(row)
            printer.print_row(row)
        report = Report(tuple(rows), run.environment, ("opreplay.tracelens", options.repro_file))
    print_totals(report, console)
    return 0 if all(row.status == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
