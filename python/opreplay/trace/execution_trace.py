"""Reads an Execution Trace: its JSON text comes in, operators as columns go out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from opreplay.trace.errors import TraceError
from opreplay.trace.events import NO_ID, Events, Examples, Lanes
from opreplay.trace.loose_json import parse_object

__all__ = ["read_execution_trace"]

_USER_SCOPE = 7
"""``RecordScope::USER_SCOPE``: ranges that the user named, and the recorder's own roots."""

_RECORDER = "[pytorch|profiler|execution_trace|"
"""Beginning of the names of the recorder's roots, which enclose everything."""

_OVERLOAD = re.compile(r"[^(]*?\.(\w+)\(|[^(]*\(")


@dataclass(frozen=True, slots=True)
class _Node:
    """One node, whatever its schema version."""

    id: int
    parent: int
    name: str
    thread: str
    scope: int
    fields: Mapping[str, Any]
    """Overload and inputs: what tells calls apart, with tensors named within the call."""


def read_execution_trace(path: str | Path, text: bytes) -> Lanes:
    """Returns the nodes of an Execution Trace (schemas 1.0.1 to 1.1.1) as untimed lanes.

    Every node is an event of the operator lane; ranges that the user named are annotations too.
    The format holds no times. A clock that ticks when a node begins or ends stands in, so that
    nesting and order are those recorded.

    Raises:
        TraceError: The document or one of its nodes is malformed, or there are no nodes.
    """
    document = parse_object(path, 0, text)
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise TraceError(
            f"{path}: byte 0: the Execution Trace holds no nodes; keep the observer running "
            "while the model runs, and record it again"
        )
    read = sorted((_read_node(path, index, node) for index, node in enumerate(nodes)), key=_id)
    start, end = _clock(read)
    names = dict.fromkeys(node.thread for node in read)
    threads = {name: index for index, name in enumerate(names)}
    ranges = [
        row
        for row, node in enumerate(read)
        if node.scope == _USER_SCOPE and not node.name.startswith(_RECORDER)
    ]
    everything = _events(read, range(len(read)), start, end, threads)
    return Lanes(
        op=everything,
        launch=_events(read, (), start, end, threads),
        gpu=_events(read, (), start, end, threads),
        annotation=_events(read, ranges, start, end, threads),
        threads=tuple(threads),
        untimed=True,
    )


def _id(node: _Node) -> int:
    return node.id


def _read_node(path: str | Path, index: int, node: object) -> _Node:
    try:
        return _node(node)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"{path}: byte 0: node {index} of the Execution Trace is malformed "
            f"({type(error).__name__}: {error}); record it again"
        ) from error


def _node(node: Any) -> _Node:
    if "attrs" in node:  # schema 1.0.2 and newer
        attributes = {entry["name"]: entry["value"] for entry in node["attrs"]}
        inputs = node["inputs"]
        parent = node["ctrl_deps"]
    else:
        attributes, parent = node, node["parent"]
        inputs = {
            "values": node["inputs"],
            "shapes": node["input_shapes"],
            "types": node["input_types"],
        }
    schema = attributes.get("op_schema") or ""
    if not isinstance(schema, str) or not isinstance(inputs, dict):
        raise TypeError("op_schema is no text, or inputs is no object")
    fields = {"kernel_backend": attributes.get("kernel_backend") or "", "execution_inputs": inputs}
    if match := _OVERLOAD.match(schema):
        fields["overload"] = match[1] or ""
    return _Node(
        id=_whole(node["id"]),
        parent=_whole(parent),
        name=str(node["name"]),
        thread=str(attributes.get("tid", "")),
        scope=_whole(attributes.get("scope", 0)),
        fields=fields,
    )


def _whole(value: object) -> int:
    """Returns an id.

    Raises:
        TypeError: It is no integer.
        ValueError: It doesn't fit in 63 bits.
    """
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, got {value!r}")
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is no 64-bit integer")
    return value


def _clock(nodes: Sequence[_Node]) -> tuple[list[float], list[float]]:
    """Returns the ticks at which each node begins and ends; `nodes` are sorted by id.

    A node begins after its parent, which has a smaller id; other parents are taken as none.
    """
    row_of: dict[int, int] = {}
    children: list[list[int]] = [[] for _ in nodes]
    roots: list[int] = []
    for row, node in enumerate(nodes):
        parent = row_of.get(node.parent)
        (roots if parent is None else children[parent]).append(row)
        row_of[node.id] = row
    start, end = [0.0] * len(nodes), [0.0] * len(nodes)
    # Ticks are two roundings apart: a child never seems to end after its parent.
    tick = 0.0
    open_rows = [(row, False) for row in reversed(roots)]
    while open_rows:
        row, begun = open_rows.pop()
        tick += 2.0
        if begun:
            end[row] = tick
            continue
        start[row] = tick
        open_rows.append((row, True))
        open_rows += [(child, False) for child in reversed(children[row])]
    return start, end


def _events(
    nodes: Sequence[_Node],
    rows: Sequence[int],
    start: Sequence[float],
    end: Sequence[float],
    threads: Mapping[str, int],
) -> Events:
    """Returns the events of `rows`; nodes with equal names and inputs share an example."""
    numbers: dict[bytes, int] = {}
    examples: list[Mapping[str, Any]] = []
    distinct = []
    for row in rows:
        fields = _anonymous(nodes[row].fields)
        key = orjson.dumps([nodes[row].name, fields])
        if key not in numbers:
            numbers[key] = len(examples)
            examples.append({"name": nodes[row].name, "args": fields})
        distinct.append(numbers[key])
    return Events(
        start=np.array([start[row] for row in rows], np.float64),
        duration=np.array([end[row] - start[row] for row in rows], np.float64),
        thread=np.array([threads[nodes[row].thread] for row in rows], np.int64),
        external_id=np.array([nodes[row].id for row in rows], np.int64),
        correlation=np.full(len(rows), NO_ID, np.int64),
        distinct=np.array(distinct, np.int64),
        examples=Examples.of(examples),
    )


def _anonymous(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Names tensors and storages by their first place in the call, so that equal calls are equal.

    Of ``[tensor, storage, offset, elements, item size, device]`` the storage's new name, the
    offset and the device stay.
    """
    inputs = fields["execution_inputs"]
    numbers: dict[Any, int] = {}

    def renamed(value: Any, kind: Any) -> Any:
        if not isinstance(value, list) or not isinstance(kind, str):
            return value
        if kind.startswith("Tensor("):
            if len(value) < 3 or isinstance(value[1], list | dict):
                return value
            return [numbers.setdefault(value[1], len(numbers)), value[2], *value[5:6]]
        if kind.startswith("GenericList[Tensor("):
            kinds = kind[len("GenericList[") : -1].split(",")
            if len(kinds) == len(value):
                return [
                    renamed(item, item_kind) for item, item_kind in zip(value, kinds, strict=True)
                ]
        return value

    values, types = inputs.get("values"), inputs.get("types")
    if isinstance(values, list) and isinstance(types, list) and len(values) == len(types):
        values = [renamed(value, kind) for value, kind in zip(values, types, strict=True)]
    return {**fields, "execution_inputs": {**inputs, "values": values}}
