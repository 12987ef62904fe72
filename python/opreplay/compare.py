"""Compares two runs: two reports, or files of them, come in; a comparison goes out."""

from __future__ import annotations

from pathlib import Path

from opreplay.report.comparison import (
    Basis,
    Comparison,
    Number,
    compared_rows,
    number_of,
)
from opreplay.report.results import Report
from opreplay.report.results_file import read_results
from opreplay.report.row import Row, RowKey
from opreplay.statistics import Estimate, compare_samples, compare_stats, widened

__all__ = ["compare"]


def compare(
    a: str | Path | Report,
    b: str | Path | Report,
    *,
    tolerance: float = 0.05,
    number: Number | None = None,
) -> Comparison:
    """Compares two runs row by row.

    The rows of two runs differ by more than the noise inside each of them: pages, clocks and
    neighbours are others. `tolerance` is there for that; `opreplay ab` takes both sides in turn,
    and tells smaller differences.

    Args:
        a: A report or the path of a results file: what B is measured against.
        b: Another one.
        tolerance: Ratios within 1 + tolerance and its inverse count as same.
        number: Which time to compare; the default is the device's where both have it, else the
            host's.

    Raises:
        ResultsError: A file holds no results.
        ValueError: The tolerance is not positive.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be more than 0, got {tolerance}")
    a = a if isinstance(a, Report) else read_results(a)
    b = b if isinstance(b, Report) else read_results(b)
    ours, theirs = _by_key(a), _by_key(b)
    pairs = [(row, theirs[key]) for key, row in ours.items() if key in theirs]
    found = [_estimated(*pair, number=number, tolerance=tolerance) for pair in pairs]
    estimates, between_runs = widened(
        [estimate for _, _, estimate in filter(None, found)], tolerance=tolerance
    )
    wider = iter(estimates)
    return Comparison(
        rows=compared_rows(
            pairs, [one and (one[0], one[1], next(wider)) for one in found], wanted=number
        ),
        a=a.environment,
        b=b.environment,
        command=("opreplay.compare",),
        tolerance=tolerance,
        between_runs=between_runs,
        only_in_a=_left_over(ours, theirs),
        only_in_b=_left_over(theirs, ours),
    )


def _by_key(report: Report) -> dict[RowKey, Row]:
    return {row.key: row for row in report.rows}


def _left_over(rows: dict[RowKey, Row], others: dict[RowKey, Row]) -> tuple[tuple[str, str], ...]:
    return tuple((row.op, row.signature) for key, row in rows.items() if key not in others)


def _estimated(
    a: Row, b: Row, *, number: Number | None, tolerance: float
) -> tuple[Number, Basis, Estimate] | None:
    chosen = number_of(a, b, number)
    if chosen is None:
        return None
    ours, theirs = getattr(a.timing, chosen), getattr(b.timing, chosen)
    if min(len(ours.raw or ()), len(theirs.raw or ())) < 2:
        return chosen, "quantiles", compare_stats(ours, theirs, tolerance=tolerance)
    return chosen, "samples", compare_samples(ours.raw, theirs.raw, tolerance=tolerance)
