"""Events that other tools hold as dictionaries: they come in, a trace goes out.

The form is that of one element of a Kineto file's ``traceEvents``, with its ``args``.
"""

from __future__ import annotations

import ast
import csv
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opreplay.trace.events import NO_ID, Events, Examples, Lanes
from opreplay.trace.reader import Trace
from opreplay.trace.steps import Phase, Step, parse_step
from opreplay.trace.timeline import build_timeline

__all__ = [
    "annotate_batches",
    "batch_fields",
    "batch_of_event",
    "read_unique_args",
    "trace_of_events",
]

_BATCH = "batch_context"
_COUNT = "operation_count"
_COLUMNS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_COUNT_COLUMNS = ("operation_count", "Count")


def trace_of_events(events: Sequence[Mapping[str, Any]], *, name: str = "events") -> Trace:
    """Returns a trace that holds these operators in this order, and no times.

    Args:
        events: Operators; ``"operation_count"`` says how often one occurs, once if it is not there.
        name: What messages call the trace.

    Raises:
        ValueError: An event has no name or no ``args``.
    """
    for index, event in enumerate(events):
        if not (isinstance(event.get("name"), str) and isinstance(event.get("args"), dict)):
            raise ValueError(
                f"{name}: event {index}: expected a dictionary with 'name' and 'args' as in a "
                f"trace's traceEvents, got the keys {', '.join(map(str, event)) or 'none'}"
            )
    counts = [max(1, int(event.get(_COUNT, 1))) for event in events]
    distinct = np.repeat(np.arange(len(events), dtype=np.int64), counts)
    nothing = _columns(np.zeros(0, np.int64), ())
    lanes = Lanes(
        op=_columns(distinct, tuple(events)),
        launch=nothing,
        gpu=nothing,
        annotation=nothing,
        threads=("",),
        untimed=True,
    )
    return Trace(name, build_timeline(lanes))


def _columns(distinct: np.ndarray[Any, Any], examples: tuple[Mapping[str, Any], ...]) -> Events:
    count = len(distinct)
    return Events(
        start=np.arange(count, dtype=np.float64) * 2,
        duration=np.ones(count),
        thread=np.zeros(count, np.int64),
        external_id=np.full(count, NO_ID, np.int64),
        correlation=np.full(count, NO_ID, np.int64),
        distinct=distinct,
        examples=Examples.of(examples),
    )


def annotate_batches(events: Iterable[dict[str, Any]], ops: Collection[str]) -> int:
    """Writes the batch of the enclosing step into events, as ``event["batch_context"]``.

    The batch is a dictionary of ``n_prefill``, ``prefill_tokens``, ``n_decode`` and
    ``decode_tokens``; a total that the step's name does not hold is None. A step inside another of
    the same process is part of it.

    Args:
        events: Operators and annotations of a trace, in any order, with ``ts`` and ``dur``.
        ops: Exact names of the operators that are given a batch.

    Returns:
        How many events were given one.
    """
    events = list(events)
    steps: dict[Any, list[tuple[float, float, Step]]] = {}
    for event in events:
        if event.get("cat") == "user_annotation" and (step := parse_step(event.get("name", ""))):
            start = float(event.get("ts", 0))
            span = (start, start + float(event.get("dur", 0)), step)
            steps.setdefault(event.get("pid"), []).append(span)
    outermost = {process: _outermost(spans) for process, spans in steps.items()}
    given = 0
    for event in events:
        if event.get("name") not in ops or not event.get("args", {}).get("Input Dims"):
            continue
        spans = outermost.get(event.get("pid"), [])
        start = float(event.get("ts", 0))
        at = bisect_right(spans, start, key=lambda span: span[0]) - 1
        if at >= 0 and start <= spans[at][1]:
            event[_BATCH] = batch_fields(spans[at][2])
            given += 1
    return given


def batch_of_event(event: Mapping[str, Any]) -> Step | None:
    """Returns the batch that `annotate_batches` wrote; None where there is none.

    Raises:
        ValueError: It lacks one of the four numbers.
    """
    fields = event.get(_BATCH)
    if fields is None:
        return None
    names = tuple(batch_fields(Step(Phase(), Phase())))
    if not isinstance(fields, Mapping) or any(name not in fields for name in names):
        raise ValueError(f"{_BATCH} is {fields!r}, expected {', '.join(names)}")
    prompts, prompt_tokens, generating, tokens = (fields[name] for name in names)
    return Step(
        Phase(prompts, prompt_tokens, None if prompts else 0),
        Phase(generating, tokens, None if generating else 0),
    )


def read_unique_args(path: str | Path) -> list[dict[str, Any]]:
    """Reads the ``ops_unique_args`` sheet of a TraceLens report, saved as CSV, as events.

    Each has ``name``, ``args`` with the sheet's four columns of inputs, ``operation_count``, and
    ``UID`` where the sheet has an example's (``ex_UID``). All other columns are passed over.

    Raises:
        ValueError: A column is missing, or a cell does not hold what its column is for.
    """
    limit = csv.field_size_limit(sys.maxsize)  # lists of kernels fill more than the default holds
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            table = csv.DictReader(stream)
            missing = [
                name for name in ("name", *_COLUMNS[:2]) if name not in (table.fieldnames or ())
            ]
            if missing:
                raise ValueError(
                    f"{path}: line 1: the table has no column {', '.join(map(repr, missing))}; "
                    "save the ops_unique_args sheet of a TraceLens report as CSV"
                )
            return [_event_of_row(path, table.line_num, row) for row in table]
    finally:
        csv.field_size_limit(limit)


def _event_of_row(path: str | Path, line: int, row: Mapping[str, str]) -> dict[str, Any]:
    def cell(column: str, read: Any) -> Any:
        try:
            return read(row[column])
        except (ValueError, SyntaxError, TypeError) as error:
            raise ValueError(
                f"{path}: line {line}: column {column!r} holds {row[column]!r}, which cannot be "
                "read; save the sheet again as CSV"
            ) from error

    event: dict[str, Any] = {"name": row["name"], "cat": "cpu_op"}
    event["args"] = {name: cell(name, _literal_list) for name in _COLUMNS if row.get(name)}
    for column in _COUNT_COLUMNS:
        if row.get(column):
            event[_COUNT] = cell(column, _whole)
    if row.get("ex_UID"):
        event["UID"] = cell("ex_UID", _whole)
    return event


def _whole(text: str) -> int:
    """Reads a number; a sheet that was through a data frame writes 200 as 200.0."""
    return int(float(text))


def _literal_list(text: str) -> Any:
    return _as_lists(ast.literal_eval(text))


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _outermost(spans: list[tuple[float, float, Step]]) -> list[tuple[float, float, Step]]:
    kept: list[tuple[float, float, Step]] = []
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not kept or span[1] > kept[-1][1]:
            kept.append(span)
    return kept


def batch_fields(step: Step) -> dict[str, int | None]:
    """Returns the four numbers of a batch by TraceLens' names."""
    return {
        "n_prefill": step.context.sequences,
        "prefill_tokens": step.context.queries,
        "n_decode": step.generation.sequences,
        "decode_tokens": step.generation.queries,
    }
