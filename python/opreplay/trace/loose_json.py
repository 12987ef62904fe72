"""Parses JSON objects that profilers have written, strict JSON or nearly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from opreplay.trace.errors import TraceError

__all__ = ["parse_object", "parse_objects"]

_LOOSE_STRING = re.compile(
    r'"((?:\\.|[^\\])*?)"(?=\s*(?:[:}\]]|,\s*["{\[\-\dtfnNI]|\Z))', re.DOTALL
)
"""A string up to the first quote that JSON goes on after, so that stray quotes stay inside."""

_QUOTE_OR_ESCAPE = re.compile(r'(\\.)|"', re.DOTALL)


def parse_objects(path: str | Path, texts: Sequence[tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Returns the objects of several texts, each with its place; see `parse_object`.

    Strict ones are parsed together: a call for each would take longer than the parsing.
    """
    parsed: list[dict[str, Any]] = []
    with suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(b"[" + b",".join([text for _, text in texts]) + b"]")
    if len(parsed) == len(texts):
        return parsed
    return [parse_object(path, offset, text) for offset, text in texts]


def parse_object(path: str | Path, offset: int, data: bytes) -> dict[str, Any]:
    """Returns the object that `data` holds.

    Args:
        path: Name of the file, for the error.
        offset: Where `data` begins in the document [bytes], for the error.
        data: Text of one object.

    Raises:
        TraceError: The text cannot be read even loosely.
    """
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        text = _LOOSE_STRING.sub(_escape_quotes_inside, data.decode(errors="replace"))
        try:
            parsed = json.loads(text, strict=False)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(
                f"{path}: byte {offset}: the event that begins here is no JSON ({error}); copy or "
                "record the trace again"
            ) from error
    if not isinstance(parsed, dict):
        raise TypeError(f"expected the text of an object, got {data[:20]!r}")
    return parsed


def _escape_quotes_inside(match: re.Match[str]) -> str:
    inner = match.group(1)
    if '"' not in inner:
        return match.group(0)
    return '"' + _QUOTE_OR_ESCAPE.sub(lambda found: found.group(1) or '\\"', inner) + '"'
