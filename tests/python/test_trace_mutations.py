"""Damaged traces give a result or a TraceError, and never anything else."""

from __future__ import annotations

import gzip
import random
import time

import orjson
import pytest
from kineto_events import TINY_TRACE
from test_trace_execution import ADD, TWO, node

from opreplay.trace import TraceError, read_trace

_CASES = 400
_MOST_SECONDS = 4.0
"""After which no further case begins, so that a slow machine runs fewer."""


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def spliced(data: bytes, chance: random.Random) -> bytes:
    """A piece of the trace, from anywhere, in the place of another."""
    length = chance.randrange(1, 200)
    source, target = (chance.randrange(len(data)) for _ in range(2))
    return data[:target] + data[source : source + length] + data[target + length :]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def execution_trace() -> bytes:
    nodes = [node(2 + index, "aten::add", *TWO, schema=ADD) for index in range(8)]
    return orjson.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes})


@pytest.mark.parametrize("mutate", [cut, spliced, flipped])
@pytest.mark.parametrize("kind", ["kineto", "execution"])
def test_a_damaged_trace_is_read_or_refused(tmp_path, kind, mutate):
    data = gzip.decompress(TINY_TRACE.read_bytes()) if kind == "kineto" else execution_trace()
    path = tmp_path / "damaged.json"
    began = time.monotonic()
    for seed in range(_CASES):
        if time.monotonic() - began > _MOST_SECONDS:
            break
        path.write_bytes(mutate(data, random.Random(seed)))
        try:
            groups = read_trace(path).groups()
        except TraceError as error:
            assert str(path) in str(error), f"seed {seed}"
        else:
            assert all(group.count > 0 for group in groups), f"seed {seed}"
