"""Scans a Kineto document: pieces of JSON come in, its events as columns go out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import starmap
from pathlib import Path

import orjson

from opreplay._scan import Scanner
from opreplay.trace.arguments import LISTS, argument_of_cell
from opreplay.trace.call import RecordedArgument
from opreplay.trace.devices import device_names
from opreplay.trace.errors import TraceError
from opreplay.trace.events import Events, Examples, Lanes
from opreplay.trace.execution_trace import read_execution_trace
from opreplay.trace.kept_values import KEY as KEPT_VALUES
from opreplay.trace.loose_json import parse_objects

__all__ = ["new_scanner", "scan_lanes"]

_LANES = ("op", "launch", "gpu", "annotation")

_CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "op": ("cpu_op", "Operator"),
    "launch": (
        "cuda_runtime",
        "cuda_driver",
        "privateuse1_runtime",
        "privateuse1_driver",
        "xpu_runtime",
        "mtia_runtime",
        "Runtime",
    ),
    "gpu": ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"),
    "annotation": ("user_annotation",),
}
"""Categories of each lane; Kineto's first releases wrote the capitalised ones."""

_EXTERNAL_ID, _CORRELATION = 0, 1
"""Numbers of the id columns."""

_SIGNATURE_FIELDS = ("Input dims", "kernel_backend", "kernel", KEPT_VALUES)
"""Fields besides `LISTS` that tell calls of an operator apart, and launches of a function."""

_REMEDY = "pass the .json or .json.gz file that torch.profiler's export_chrome_trace wrote"


def scan_lanes(path: str | Path, pieces: Iterable[bytes]) -> Lanes:
    """Returns the complete events of the lanes; events without a time are left out.

    What strict JSON forbids, but profilers have written, is read all the same: NaN and Infinity,
    invalid UTF-8, control characters and unescaped quotes in names, integers of any size.

    Raises:
        TraceError: The document is cut off, damaged, foreign, or holds no event.
    """
    scanner = new_scanner()
    unclaimed: list[bytes] = []  # what precedes the events; an Execution Trace as a whole
    last: deque[bytes] = deque(maxlen=2)
    devices: tuple[str, ...] = ()
    begun = False
    for piece in pieces:
        scanner.feed(piece)
        last.append(piece)
        if not begun:
            unclaimed.append(piece)
        if scanner.has_records and not begun:
            begun = True
            devices = device_names(b"".join(unclaimed))
            unclaimed.clear()
    status, offset, found = scanner.finish()
    if status != "complete":
        raise _refusal(path, status, offset, found)
    if not scanner.has_records and b"nodes" in scanner.keys:
        return read_execution_trace(path, b"".join(unclaimed))
    if not scanner.has_records:
        raise TraceError(f"{path}: byte 0: {_describe(scanner)}")
    if not scanner.record_count:
        raise TraceError(
            f"{path}: byte 0: the trace holds no event; keep the profiler running while the "
            "model runs, and record the trace again"
        )
    arguments = _arguments_of_cells(scanner)
    op, launch, gpu, annotation = (
        _events(path, scanner, lane, arguments) for lane in range(len(_LANES))
    )
    return Lanes(
        op=op,
        launch=launch,
        gpu=gpu,
        annotation=annotation,
        threads=tuple(_text(thread) for thread in scanner.threads),
        devices=devices or device_names(b"".join(last)),
    )


def new_scanner() -> Scanner:
    """Returns a scanner that looks for the lanes of a Kineto document."""
    return Scanner(
        records_key="traceEvents",
        label_key="schema",
        phase=("ph", "X"),
        lane_key="cat",
        lanes=[
            (category, lane) for lane, name in enumerate(_LANES) for category in _CATEGORIES[name]
        ],
        time_keys=("ts", "dur"),
        thread_keys=("pid", "tid"),
        fields_key="args",
        id_keys=[
            ("External id", _EXTERNAL_ID),
            ("external id", _EXTERNAL_ID),
            ("correlation", _CORRELATION),
        ],
        name_key="name",
        list_keys=list(LISTS),
        signature_keys=list(_SIGNATURE_FIELDS),
    )


def _arguments_of_cells(scanner: Scanner) -> list[RecordedArgument | None]:
    """Returns the argument of each cell; None for all where one is no strict JSON."""
    text, count = scanner.cells()
    try:
        return list(starmap(argument_of_cell, orjson.loads(text)))
    except orjson.JSONDecodeError:
        return [None] * count


def _examples(
    path: str | Path, scanner: Scanner, lane: int, arguments: list[RecordedArgument | None]
) -> Examples:
    names, lists, others = scanner.examples(lane, arguments)
    events = parse_objects(path, [(offset, text) for _, offset, text in others])
    read = Examples.of(events)
    fields = {}
    for place, (number, _, _) in enumerate(others):
        names[number], lists[number] = read.names[place], read.arguments[place]
        fields[number] = read.fields[place]
    return Examples(tuple(names), tuple(lists), fields)


def _events(
    path: str | Path, scanner: Scanner, lane: int, arguments: list[RecordedArgument | None]
) -> Events:
    start, duration, thread, distinct, ids = scanner.table(lane)
    return Events(
        start=start,
        duration=duration,
        thread=thread,
        external_id=ids[_EXTERNAL_ID],
        correlation=ids[_CORRELATION],
        distinct=distinct,
        examples=_examples(path, scanner, lane, arguments),
    )


def _refusal(path: str | Path, status: str, offset: int, found: bytes) -> TraceError:
    if status == "truncated":
        return TraceError(
            f"{path}: byte {offset}: the JSON ends in the middle of the trace (truncated file); "
            "copy or record the trace again"
        )
    if status == "foreign":
        return TraceError(
            f"{path}: byte {offset}: found {_text(found)!r}, which begins no JSON document; "
            f"{_REMEDY}"
        )
    return TraceError(
        f"{path}: byte {offset}: found {_text(found)!r} where JSON expects something else "
        "(damaged file); copy or record the trace again"
    )


def _describe(scanner: Scanner) -> str:
    keys = {_text(key) for key in scanner.keys}
    some = ", ".join(sorted(keys)[:5]) or "none"
    return f"found a JSON object without traceEvents (keys: {some}); {_REMEDY}"


def _text(text: bytes) -> str:
    return text.decode(errors="replace")
