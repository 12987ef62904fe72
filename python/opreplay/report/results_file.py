"""Results files read back: JSON comes in, the report goes out; a bad file is one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import orjson

from opreplay.document import Node, read_batch
from opreplay.environment import Environment
from opreplay.outcome import ResultCheck
from opreplay.report.results import FORMAT, Report
from opreplay.report.row import Row, RowKey
from opreplay.stat import Stat, Timing
from opreplay.trace.call import REASONS, Point, RecordedTimes

__all__ = ["ROWS_FORMAT", "ResultsError", "read_results", "read_row", "read_rows"]

ROWS_FORMAT = "opreplay-rows/1"
_ROWS_HEAD = b'{"format":"opreplay-rows/'
_REMEDY = "write it with: opreplay run TRACE --json FILE"

T = TypeVar("T")


class ResultsError(ValueError):
    """A file holds no results; the text is one sentence with file, place, cause and remedy."""


class ResultsNode(Node):
    """A value of a results file."""

    def failure(self, sentence: str) -> ResultsError:
        """Makes the error of a results file."""
        return ResultsError(f"{sentence}; {_REMEDY}")


def read_results(path: str | Path) -> Report:
    """Reads what ``opreplay run --json`` or ``--jsonl`` wrote.

    Raises:
        ResultsError: The file is unreadable, holds no results or a malformed entry.
    """
    data = _read_bytes(path)
    if data.startswith(_ROWS_HEAD):
        return read_rows(path)[0]
    root = _parse(data, path)
    found = root.field("format", ResultsNode.text)
    if found != FORMAT:
        raise root.failure(f"{path}: format is {found!r}, this version reads {FORMAT!r}")
    return Report(
        rows=root.field("rows", lambda rows: rows.each(read_row)),
        environment=root.field("environment", read_environment),
        command=root.field("command", lambda words: words.each(ResultsNode.text)),
        recorded_on=root.field("recorded_on", lambda names: names.each(ResultsNode.text)),
    )


def read_rows(path: str | Path) -> tuple[Report, dict[str, Any]]:
    """Reads a file of rows, one a line; the last line of a row holds.

    A last line that was not finished is left out: its run was ended in the middle of it.

    Returns:
        The report, and the options of the run.

    Raises:
        ResultsError: The file is unreadable or holds a malformed line.
    """
    first, *lines = _read_bytes(path).split(b"\n")[:-1] or [b""]
    head = _parse(first, path, "line 1")
    found = head.field("format", ResultsNode.text)
    if found != ROWS_FORMAT:
        raise head.failure(f"{path}: format is {found!r}, this version reads {ROWS_FORMAT!r}")
    options = head.field("options", lambda fields: fields.value)
    rows: dict[RowKey, Row] = {}
    for number, line in enumerate(lines, start=2):
        row = read_row(_parse(line, path, f"line {number}"))
        rows[row.key] = row
    report = Report(
        rows=tuple(rows.values()),
        environment=head.field("environment", read_environment),
        command=head.field("command", lambda words: words.each(ResultsNode.text)),
        recorded_on=tuple(options.get("recorded_on", ())),
    )
    return report, options


def _read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error


def _parse(data: bytes, path: str | Path, place: str = "") -> ResultsNode:
    try:
        return ResultsNode(orjson.loads(data), place, path)
    except orjson.JSONDecodeError as error:
        where = f"{place}: byte {error.pos}" if place else f"byte {error.pos}"
        sentence = f"{path}: {where}: not JSON ({error.msg}); {_REMEDY}"
        raise ResultsError(sentence) from error


def read_environment(node: Node) -> Environment:
    """Reads an environment block."""
    return _record(node, Environment)


def read_row(node: Node) -> Row:
    """Reads one row, as `Row.to_json` writes it."""
    recorded = node.field("recorded_us", lambda times: times)
    return Row(
        op=node.field("op", Node.text),
        overload=node.field("overload", Node.text),
        resolved_op=node.field("resolved_op", Node.text),
        signature=node.field("signature", Node.text),
        inputs=node.field("inputs", Node.text),
        step=node.field("step", lambda step: step.optional(Node.text)),
        batch=node.field("batch", lambda batch: batch.optional(read_batch)),
        count=node.field("count", Node.count),
        host=recorded.field("host", _read_times),
        device=recorded.field("device", lambda times: times.optional(_read_times)),
        in_graph=node.field("in_graph", Node.flag),
        kernels_recorded=node.field("kernels_recorded", lambda kernels: kernels.each(_read_kernel)),
        kernels_replayed=node.field(
            "kernels_replayed", lambda list_: list_.optional(lambda all: all.each(_read_kernel))
        ),
        kernels_us=node.field("kernels_us", lambda kernels: kernels.optional(_read_numbers)),
        bytes=node.field("bytes", lambda size: size.optional(Node.count)),
        flops=node.field("flops", lambda number: number.optional(Node.count)),
        schemas_rejected=node.field("schemas_rejected", lambda all: all.each(_read_rejected)),
        reason=node.field("reason", lambda one: one.optional(lambda it: it.choice(REASONS))),
        detail=node.field("detail", Node.text),
        assumptions=node.field("assumptions", lambda sentences: sentences.each(Node.text)),
        recipe=node.field("recipe", lambda recipe: recipe.optional(Node.text)),
        schema=node.field("schema", lambda schema: schema.optional(Node.text)),
        timing=node.field("timing", lambda timing: timing.optional(_read_timing)),
        outputs=node.field("outputs", lambda found: found.optional(_read_check)),
        ran_on=node.field("ran_on", lambda name: name.optional(Node.text)),
        point=None
        if "point" not in node.value  # files of earlier versions
        else node.field("point", lambda point: point.optional(_read_point)),
    )


def _read_point(node: Node) -> Point:
    return Point(
        call=node.field("call", Node.text),
        settings=tuple(node.field("settings", lambda all: all.items(Node.text))),
    )


def _read_times(node: Node) -> RecordedTimes:
    return _record(node, RecordedTimes)


def _read_kernel(node: Node) -> tuple[str, int]:
    return node.field("name", Node.text), node.field("count", Node.count)


def _read_rejected(node: Node) -> tuple[str, str]:
    return node.field("schema", Node.text), node.field("why", Node.text)


def _read_timing(node: Node) -> Timing:
    return _record(node, Timing)


def _read_check(node: Node) -> ResultCheck:
    return _record(node, ResultCheck)


def _record(node: Node, kind: type[T]) -> T:
    """Reads an object with the fields of a dataclass; those with a default may be absent."""
    known: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        absent = isinstance(node.value, dict) and one.name not in node.value
        if not (absent and one.default is not MISSING):
            known[one.name] = node.field(one.name, _reader(str(one.type)))
    return kind(**known)


def _reader(annotation: str) -> Callable[[Node], Any]:
    base = annotation.removesuffix(" | None")
    read = Node.text if base.startswith("Literal") else _READERS[base]
    return read if base == annotation else lambda node: node.optional(read)


def _read_texts(node: Node) -> dict[str, str]:
    return dict(node.items(Node.text))


def _read_numbers(node: Node) -> dict[str, float]:
    return dict(node.items(Node.number))


_READERS: dict[str, Callable[[Node], Any]] = {
    "str": Node.text,
    "bool": Node.flag,
    "int": Node.count,
    "float": Node.number,
    "list[float]": lambda node: list(node.each(Node.number)),
    "dict[str, str]": _read_texts,
    "tuple[str, ...]": lambda node: node.each(Node.text),
    "Stat": lambda node: _record(node, Stat),
}
