"""JSON of a trace: bytes come in, the list of events goes out."""

from __future__ import annotations

import codecs
import json
import logging
import re
from pathlib import Path
from typing import Any

import orjson

from opreplay.trace.errors import TraceError

__all__ = ["parse_events"]

_log = logging.getLogger(__name__)

_REMEDY = "pass the .json or .json.gz file that torch.profiler's export_chrome_trace wrote"

_LOOSE_STRING = re.compile(
    r'"((?:\\.|[^\\])*?)"(?=\s*(?:[:}\]]|,\s*["{\[\-\dtfnNI]|\Z))', re.DOTALL
)
"""A string up to the first quote that JSON structure follows, so that stray quotes stay inside."""

_QUOTE_OR_ESCAPE = re.compile(r'(\\.)|"', re.DOTALL)


def parse_events(path: str | Path, data: bytes) -> list[dict[str, Any]]:
    """Returns the events of a Kineto document.

    Strict JSON goes through orjson. What orjson refuses, but profilers have written (NaN and
    Infinity, invalid UTF-8, control characters and unescaped quotes in names, integers over
    64 bits), is read by a slower path.

    Raises:
        TraceError: The bytes are no JSON, are cut off, hold no trace, or hold no event.
    """
    document = _parse(path, data)
    if isinstance(document, dict):
        events = document.get("traceEvents")
        if not isinstance(events, list):
            raise TraceError(f"{path}: byte 0: {_describe(document)}")
    elif isinstance(document, list):
        events = document
    else:
        raise TraceError(
            f"{path}: byte 0: found a JSON {type(document).__name__}, not a trace; {_REMEDY}"
        )
    kept = [event for event in events if isinstance(event, dict)]
    if not kept:
        raise TraceError(
            f"{path}: byte 0: the trace holds no event; keep the profiler running while the "
            "model runs, and record the trace again"
        )
    return kept


def _describe(document: dict[str, Any]) -> str:
    if isinstance(document.get("nodes"), list):
        return (
            f"found an Execution Trace (schema {document.get('schema', 'unknown')}), which is not "
            "read yet; record the run with torch.profiler and export_chrome_trace"
        )
    keys = ", ".join(sorted(document)[:5])
    return f"found a JSON object without traceEvents (keys: {keys or 'none'}); {_REMEDY}"


def _parse(path: str | Path, data: bytes) -> Any:
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as strict:
        _log.info("%s: not strict JSON (%s); reading it tolerantly", path, strict)
    text = body.decode(errors="replace")
    try:
        return json.loads(text, strict=False)
    except (json.JSONDecodeError, RecursionError) as error:
        if not body.lstrip().startswith((b"{", b"[")):
            raise TraceError(
                f"{path}: byte 0: found {data[:8]!r}, which begins no JSON document; {_REMEDY}"
            ) from error
        if not body.rstrip().endswith((b"}", b"]")):
            raise TraceError(
                f"{path}: byte {len(data)}: the JSON ends in the middle of the trace (truncated "
                "file); copy or record the trace again"
            ) from error
    # Only now: finding the stray quotes takes seconds on a large file.
    text = _LOOSE_STRING.sub(_escape_quotes_inside, text)
    try:
        return json.loads(text, strict=False)
    except RecursionError as error:
        raise TraceError(
            f"{path}: byte 0: found JSON that is nested deeper than any trace; {_REMEDY}"
        ) from error
    except json.JSONDecodeError as error:
        raise _damaged(path, data) from error


def _escape_quotes_inside(match: re.Match[str]) -> str:
    inner = match.group(1)
    if '"' not in inner:
        return match.group(0)
    return '"' + _QUOTE_OR_ESCAPE.sub(lambda found: found.group(1) or '\\"', inner) + '"'


def _damaged(path: str | Path, data: bytes) -> TraceError:
    """Says where `data` stops being JSON."""
    # One character per byte, so that the position of a character is a byte offset.
    text = data.decode("latin-1")
    start = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    offset = len(data)
    try:
        json.loads(text[start:], strict=False)
    except json.JSONDecodeError as error:
        offset = start + error.pos
    if not text[offset:].strip():
        found = "the end of the file in the middle of the trace (truncated file)"
    else:
        found = f"{data[offset : offset + 12].decode(errors='replace')!r} (damaged file)"
    return TraceError(f"{path}: byte {offset}: found {found}; copy or record the trace again")
