"""Two sides compared: rows with ratios and verdicts come in; text, JSON or CSV goes out."""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from rich.console import Console
from rich.table import Table

from opreplay.environment import OF_THE_MOMENT, Environment
from opreplay.report.row import Row
from opreplay.statistics import (
    FALSE_DISCOVERY_RATE,
    VERDICTS,
    Estimate,
    Verdict,
    give_verdicts,
)

__all__ = [
    "NUMBERS",
    "Basis",
    "ComparedRow",
    "Comparison",
    "Number",
    "OutputCheck",
    "compared_rows",
    "number_of",
    "print_comparison",
]

FORMAT = "opreplay-comparison/1"

Number = Literal["host_ns", "hot_us", "cold_us", "latency_us"]
NUMBERS: tuple[Number, ...] = ("host_ns", "hot_us", "cold_us", "latency_us")

Basis = Literal["pairs", "samples", "quantiles"]
"""What an estimate rests on: times taken in turn, the samples of two runs, or their quartiles."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """What the outputs of both sides have in common."""

    within: bool
    """True if every element is within the tolerance."""
    detail: str
    """What differs most; empty if nothing does."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One signature on both sides."""

    op: str
    """Operator name as recorded."""
    signature: str
    """Stable hash of the call."""
    step: str | None
    """Annotation of the step, where the row stands for one step only."""
    count: int
    """Number of recorded calls."""
    number: Number | None
    """Which time of the call is compared; None where none is."""
    basis: Basis | None
    """What the estimate rests on."""
    a_us: float | None
    """Median time of side A [microseconds]."""
    b_us: float | None
    """Median time of side B [microseconds]."""
    estimate: Estimate | None
    """Ratio, interval and probabilities; None where a side has no time."""
    verdict: Verdict | None
    """None where a side has no time."""
    detail: str
    """Why nothing is compared; empty if something is."""
    outputs: OutputCheck | None = None
    """Whether both sides computed the same; None where that was not asked for."""

    @property
    def effect_us(self) -> float:
        """What B adds to the time of all recorded calls of the signature [microseconds]."""
        if self.estimate is None or self.a_us is None:
            return 0.0
        return (self.estimate.ratio - 1) * self.a_us * self.count

    def to_json(self) -> dict[str, Any]:
        """The row in the form that stands in a comparison file."""
        estimate = self.estimate
        outputs = self.outputs
        return {
            "op": self.op,
            "signature": self.signature,
            "step": self.step,
            "count": self.count,
            "number": self.number,
            "basis": self.basis,
            "a_us": self.a_us,
            "b_us": self.b_us,
            "ratio": estimate and estimate.ratio,
            "low": estimate and _finite(estimate.low),
            "high": estimate and _finite(estimate.high),
            "p_different": estimate and estimate.p_different,
            "p_same": estimate and estimate.p_same,
            "effect_us": estimate and self.effect_us,
            "verdict": self.verdict,
            "outputs_within": outputs and outputs.within,
            "detail": self.detail or (outputs.detail if outputs is not None else ""),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows of both sides, the largest effect on the total time first."""

    rows: tuple[ComparedRow, ...]
    """Signatures that both sides have."""
    a: Environment
    """Where side A ran."""
    b: Environment
    """Where side B ran."""
    command: tuple[str, ...]
    """What asked for it."""
    tolerance: float
    """Ratios within 1 + tolerance and its inverse count as same."""
    between_runs: float | None = None
    """Standard error of a ratio that the runs as a whole add to each row's own; None where both
    sides were run in turn, or the rows are too few to tell."""
    only_in_a: tuple[tuple[str, str], ...] = ()
    """Operator and signature of the rows that B lacks."""
    only_in_b: tuple[tuple[str, str], ...] = ()
    """Operator and signature of the rows that A lacks."""

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Returns what differs between the environments, by field; versions one by one."""
        ours, theirs = _flat(self.a.to_json()), _flat(self.b.to_json())
        names = [name for name in (ours | theirs) if name not in OF_THE_MOMENT]
        pairs = {name: (ours.get(name), theirs.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def verdicts(self) -> dict[Verdict, int]:
        """Counts the rows by verdict; verdicts without rows are left out."""
        found = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    def slower_than(self, share: float) -> list[ComparedRow]:
        """Returns the rows that are slower by more than a share, 0.05 being 5 %."""
        return [
            row
            for row in self.rows
            if row.verdict == "slower" and row.estimate and row.estimate.ratio > 1 + share
        ]

    def to_json(self) -> dict[str, Any]:
        """The comparison in the form of a file."""
        return {
            "format": FORMAT,
            "command": list(self.command),
            "tolerance": self.tolerance,
            "false_discovery_rate": FALSE_DISCOVERY_RATE,
            "between_runs": self.between_runs,
            "environments": {"a": self.a.to_json(), "b": self.b.to_json()},
            "environment_differences": {
                name: {"a": pair[0], "b": pair[1]} for name, pair in self.differences().items()
            },
            "verdicts": dict(self.verdicts()),
            "rows": [row.to_json() for row in self.rows],
            "only_in_a": [{"op": op, "signature": name} for op, name in self.only_in_a],
            "only_in_b": [{"op": op, "signature": name} for op, name in self.only_in_b],
        }

    def write_json(self, path: str | Path) -> None:
        """Writes a comparison file."""
        Path(path).write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2) + b"\n")

    def write_csv(self, path: str | Path) -> None:
        """Writes one line for each row; a missing value is an empty field."""
        lines = [row.to_json() for row in self.rows]
        with Path(path).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, _CSV_COLUMNS)
            writer.writeheader()
            writer.writerows(lines)


_CSV_COLUMNS = (
    *("op", "signature", "step", "count", "number", "basis", "a_us", "b_us", "ratio", "low"),
    *("high", "p_different", "p_same", "effect_us", "verdict", "outputs_within", "detail"),
)


def number_of(a: Row, b: Row, wanted: Number | None) -> Number | None:
    """Chooses the time to compare: the wanted one, else the device's, else the host's."""
    if a.timing is None or b.timing is None:
        return None
    for number in (wanted,) if wanted is not None else ("hot_us", "host_ns"):
        if getattr(a.timing, number) is not None and getattr(b.timing, number) is not None:
            return number
    return None


def compared_rows(
    pairs: Sequence[tuple[Row, Row]],
    estimates: Sequence[tuple[Number, Basis, Estimate] | None],
    *,
    wanted: Number | None,
    outputs: Sequence[OutputCheck | None] | None = None,
) -> tuple[ComparedRow, ...]:
    """Gives the rows of both sides their verdicts and sorts them by effect.

    Args:
        pairs: The row of A and the row of B, by signature.
        estimates: For each pair which number was compared, on what basis, and what came out; None
            where a side has no such number.
        wanted: The number that was asked for, if one was.
        outputs: For each pair what became of its outputs, where they were compared.
    """
    verdicts = iter(give_verdicts([found[2] for found in estimates if found is not None]))
    checks = outputs or [None] * len(pairs)
    rows = []
    for (a, b), found, check in zip(pairs, estimates, checks, strict=True):
        number, basis, estimate = found or (None, None, None)
        rows.append(
            ComparedRow(
                op=a.op,
                signature=a.signature,
                step=a.step,
                count=a.count,
                number=number,
                basis=basis,
                a_us=_median_us(a, number),
                b_us=_median_us(b, number),
                estimate=estimate,
                verdict=None if found is None else next(verdicts),
                detail="" if found is not None else _why_not(a, b, wanted),
                outputs=check,
            )
        )
    return tuple(sorted(rows, key=lambda row: -abs(row.effect_us)))


def print_comparison(comparison: Comparison, console: Console, *, limit: int | None = None) -> None:
    """Prints what is compared with what, the rows, and how many have which verdict."""
    for name, (ours, theirs) in comparison.differences().items():
        console.print(f"Note: {name} differs: A has {_shown(ours)}, B has {_shown(theirs)}")
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("op", "count", "A us", "B us", "B/A", "95 % interval", "effect ms", "verdict"):
        table.add_column(
            heading, justify="left" if heading in ("op", "verdict") else "right", no_wrap=True
        )
    for row in comparison.rows[:limit]:
        table.add_row(*(cell(row) for cell in _CELLS))
    if comparison.rows:
        console.print(table)
    if limit is not None and len(comparison.rows) > limit:
        console.print(f"... and {len(comparison.rows) - limit:,} rows with less effect")
    _print_summary(comparison, console)


_CELLS: tuple[Callable[[ComparedRow], str], ...] = (
    lambda row: row.op,
    lambda row: f"{row.count:,}",
    lambda row: "" if row.a_us is None else f"{row.a_us:.2f}",
    lambda row: "" if row.b_us is None else f"{row.b_us:.2f}",
    lambda row: "" if row.estimate is None else f"{row.estimate.ratio:.3f}",
    lambda row: "" if row.estimate is None else f"{row.estimate.low:.3f} {row.estimate.high:.3f}",
    lambda row: "" if row.estimate is None else f"{row.effect_us / 1000:+.3f}",
    lambda row: _verdict_text(row),
)


def _print_summary(comparison: Comparison, console: Console) -> None:
    found = comparison.verdicts()
    words = [f"{count:,} {verdict}" for verdict, count in found.items()]
    without = sum(row.verdict is None for row in comparison.rows)
    words += [f"{without:,} not compared"] if without else []
    words += [f"{len(comparison.only_in_a):,} only in A"] if comparison.only_in_a else []
    words += [f"{len(comparison.only_in_b):,} only in B"] if comparison.only_in_b else []
    console.print()
    console.print(
        f"{', '.join(words) or 'nothing to compare'}: same means within "
        f"{comparison.tolerance:.0%}; of the verdicts, at most {FALSE_DISCOVERY_RATE:.0%} are "
        "expected to be wrong.",
        soft_wrap=True,
    )
    compared = [row for row in comparison.rows if row.estimate is not None]
    if compared:
        before = sum((row.a_us or 0) * row.count for row in compared)
        added = sum(row.effect_us for row in compared)
        console.print(
            f"All compared calls together: {before / 1000:,.3f} ms in A, "
            f"{(before + added) / 1000:,.3f} ms in B."
        )
    if any(row.basis not in (None, "pairs") for row in comparison.rows):
        _print_doubts(comparison, console)
    guessed = sum(row.basis == "quantiles" for row in comparison.rows)
    if guessed:
        console.print(
            f"{guessed:,} rows are compared on quantiles, for a side has no samples: run both "
            "with --raw for intervals that hold under noise.",
            soft_wrap=True,
        )
    for side, rows in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        for op, signature in rows:
            console.print(f"only in {side}: {op} {signature}", soft_wrap=True)


def _print_doubts(comparison: Comparison, console: Console) -> None:
    """Prints what two runs at different times leave open."""
    between = comparison.between_runs
    told = (
        "The rows are too few to tell what the runs as a whole differ by: the verdicts hold for "
        "these two runs"
        if between is None
        else f"Two runs differ by {between:.1%} for no reason of a row's own; the intervals hold "
        "that"
    )
    console.print(f"{told}. `opreplay ab` takes both sides in turn.", soft_wrap=True)
    ratios = [row.estimate.ratio for row in comparison.rows if row.estimate is not None]
    middle = statistics.median(ratios)
    if abs(math.log(middle)) > math.log1p(comparison.tolerance):
        console.print(
            f"The median ratio is {middle:.3f}: most rows moved together, as they do with another "
            "clock speed or load.",
            soft_wrap=True,
        )


def _verdict_text(row: ComparedRow) -> str:
    text = row.verdict or f"not compared: {row.detail.partition(': ')[0]}"
    if row.outputs is None:
        return text
    return f"{text}, outputs equal" if row.outputs.within else f"{text}, {row.outputs.detail}"


def _why_not(a: Row, b: Row, wanted: Number | None) -> str:
    for side, row in (("A", a), ("B", b)):
        if row.timing is None:
            return f"{side} {row.status} ({row.reason}): {row.detail}"
    return f"a side has no {wanted}"


def _median_us(row: Row, number: Number | None) -> float | None:
    if number is None or row.timing is None:
        return None
    median: float = getattr(row.timing, number).median
    return median / 1000 if number == "host_ns" else median


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
