"""The commands `compare` and `ab`: their arguments come in, an exit status goes out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from opreplay.compare import compare
from opreplay.report.comparison import NUMBERS, Comparison, print_comparison
from opreplay.report.terminal import make_console

__all__ = ["add_compare_arguments", "add_judging", "compare_command", "conclude", "share"]

_FAILED = 1


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `compare`."""
    parser.add_argument("a", metavar="A.json", help="results that B is measured against")
    parser.add_argument("b", metavar="B.json", help="results to judge")
    add_judging(parser, tolerance=0.05)


def add_judging(parser: argparse.ArgumentParser, *, tolerance: float) -> None:
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table")


def share(text: str) -> float:
    """Reads a share, as ``5%`` or ``0.05``."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 10:
        raise argparse.ArgumentTypeError(f"must be a share such as 5% or 0.05, got {text}")
    return value


def compare_command(options: argparse.Namespace) -> int:
    """Runs `compare`; returns 1 where `--fail-if-slower` finds a row."""
    comparison = compare(options.a, options.b, tolerance=options.tolerance, number=options.number)
    return conclude(comparison, options)


def conclude(comparison: Comparison, options: argparse.Namespace) -> int:
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
