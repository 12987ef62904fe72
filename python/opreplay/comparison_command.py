"""The commands `compare` and `ab`: their arguments come in, an exit status goes out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from opreplay.ab import ab, read_replacement, read_side
from opreplay.arguments import share, tolerances, writable
from opreplay.compare import compare
from opreplay.options import ReplayOptions
from opreplay.report.comparison import NUMBERS, Comparison, print_comparison
from opreplay.report.reading import read_shown
from opreplay.report.terminal import make_console
from opreplay.trace import Selection

__all__ = ["ab_command", "add_ab_arguments", "add_compare_arguments", "compare_command", "share"]

_FAILED = 1


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `compare`."""
    parser.add_argument("a", metavar="A.json", help="results that B is measured against")
    parser.add_argument("b", metavar="B.json", help="results to judge")
    _add_judging(parser, tolerance=0.05)


def _add_judging(parser: argparse.ArgumentParser, *, tolerance: float) -> None:
    """Adds what both commands have: how to judge, and where the outcome goes."""
    parser.add_argument(
        "--tolerance", type=share, default=tolerance, metavar="SHARE",
        help=f"what counts as same (default: {tolerance:.0%})".replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument(
        "--number", choices=NUMBERS, help="time to compare (default: hot_us, else host_ns)"
    )
    parser.add_argument(
        "--fail-if-slower", type=share, metavar="SHARE",
        help="exit 1 if a row is slower by more than this, e.g. 5%%",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, metavar="N", help="print so many rows (default: all)")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the comparison")
    parser.add_argument("--csv", type=writable, metavar="FILE", help="write a table")


def add_ab_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `ab` that `run` has not."""
    for side in "ab":
        parser.add_argument(
            f"--{side}", action="append", default=[], metavar="ENV",
            help=f"side {side.upper()}: a virtual environment or Python, NAME=VALUE, or a library "
            "(.so) that registers operators; repeatable (default: this environment)",
        )  # fmt: skip
    parser.add_argument(
        "--replace", type=_replacement, action="append", default=[], metavar="OP=KERNEL",
        help="side B calls KERNEL (my::op, or package.module:function) in place of OP; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--check", type=tolerances, metavar="RTOL,ATOL",
        help="what outputs may differ by (default: torch.testing's for each dtype)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="times of each side (default: 20)"
    )
    _add_judging(parser, tolerance=0.02)


def _replacement(text: str) -> tuple[str, str]:
    try:
        return read_replacement(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def compare_command(options: argparse.Namespace) -> int:
    """Runs `compare`; returns 1 where `--fail-if-slower` finds a row."""
    comparison = compare(options.a, options.b, tolerance=options.tolerance, number=options.number)
    return _conclude(comparison, options)


def ab_command(
    options: argparse.Namespace, selection: Selection, replay_options: ReplayOptions
) -> int:
    """Runs `ab`; returns 1 where a replacement computes something else, or a row is slower."""
    columns = (TextColumn("Comparing"), BarColumn(), MofNCompleteColumn())
    console = make_console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("ab", total=None)
        comparison = ab(
            options.source,
            selection,
            a=read_side(options.a),
            b=read_side(options.b) if options.b else None,
            replacements=dict(options.replace),
            options=replay_options,
            rounds=options.rounds,
            tolerance=options.tolerance,
            number=options.number,
            check=options.check,
            read=read_shown,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    status = _conclude(comparison, options)
    wrong = any(row.outputs is not None and not row.outputs.within for row in comparison.rows)
    return _FAILED if wrong else status


def _conclude(comparison: Comparison, options: argparse.Namespace) -> int:
    """Prints and writes a comparison; returns the exit status."""
    comparison = replace(comparison, command=("opreplay", *sys.argv[1:]))
    console = make_console()
    print_comparison(comparison, console, limit=options.rows)
    if options.json is not None:
        comparison.write_json(options.json)
    if options.csv is not None:
        comparison.write_csv(options.csv)
    if options.fail_if_slower is None:
        return 0
    slower = comparison.slower_than(options.fail_if_slower)
    for row in slower:
        ratio = row.estimate.ratio if row.estimate else 0
        console.print(f"slower by {ratio - 1:.1%}: {row.op} {row.signature}", soft_wrap=True)
    return _FAILED if slower else 0
