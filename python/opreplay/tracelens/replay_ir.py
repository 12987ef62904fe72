"""TraceLens' replay IR: arguments of a call come in, entries of its JSON files go out, and back.

A file is a list of entries: ``op_name``, and ``replay_ir`` with the lists ``list_pos_args`` and
``list_kwargs`` of ``arg_name``, ``arg_type`` and ``value``. A tensor's value is its shape, dtype
(the profiler's name) and strides; that of a dtype, layout or memory format is torch's number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from opreplay.resolve.call import TensorSpec, TorchValue
from opreplay.resolve.dtypes import profiler_name
from opreplay.resolve.match import enum_number, tensor_spec
from opreplay.trace.execution_arguments import event_of_values

__all__ = [
    "ReplayIr",
    "TensorCfg",
    "kwarg_only_names",
    "read_replay_ir",
    "replay_ir",
    "repro_info",
    "schema_of",
]

ReplayIr = dict[str, list[dict[str, Any]]]


@dataclass
class TensorCfg:
    """A tensor to be made."""

    shape: list[int]
    """Sizes."""
    dtype: str
    """Element type as the profiler names it, for instance ``"long int"``."""
    strides: list[int]
    """Strides in elements."""
    init: str | None = "normal"
    """How TraceLens fills it; None for a buffer that is not filled. Not read here."""


def kwarg_only_names(op: str, overload: str) -> frozenset[str]:
    """Names of the arguments that the schema takes by keyword alone; empty without a schema."""
    schema = schema_of(op, overload)
    return (
        frozenset()
        if schema is None
        else frozenset(argument.name for argument in schema.arguments if argument.kwarg_only)
    )


def schema_of(op: str, overload: str) -> Any:
    """The ``torch._C.FunctionSchema`` of an overload; None where nothing registers it."""
    try:
        return torch._C._get_schema(op, overload)
    except RuntimeError:
        return None


def replay_ir(arguments: Iterable[tuple[str, str, Any]], keywords: frozenset[str]) -> ReplayIr:
    """Returns the replay IR of a call.

    Args:
        arguments: Name, schema type and value of each argument, in schema order.
        keywords: Those that are passed by keyword.
    """
    ir: ReplayIr = {"list_pos_args": [], "list_kwargs": []}
    for name, kind, value in arguments:
        place = ir["list_kwargs" if name in keywords else "list_pos_args"]
        place.append({"arg_name": name, "arg_type": kind, "value": _ir_value(value)})
    return ir


def repro_info(op: str, ir: ReplayIr) -> dict[str, Any]:
    """Returns the entry of a file for a call; `ir` stays as it is."""
    return {
        "op_name": op,
        "replay_ir": {
            place: [{**argument, "value": _json_value(argument["value"])} for argument in entries]
            for place, entries in ir.items()
        },
    }


def read_replay_ir(path: str | Path) -> list[dict[str, Any]]:
    """Reads a file of replay IR as events, each with ``operation_count`` where it has ``count``.

    Raises:
        ValueError: The file is no such list, or an entry lacks a field.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error}); {_REMEDY}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: top level: expected a list, got {_shown(entries)}; {_REMEDY}")
    return [_event(path, index, entry) for index, entry in enumerate(entries)]


_REMEDY = "write the list of what get_repro_info() returned"


def _event(path: str | Path, index: int, entry: Any) -> dict[str, Any]:
    try:
        ir = entry["replay_ir"]
        arguments = [
            (argument["arg_type"], argument["value"])
            for argument in (*ir["list_pos_args"], *ir.get("list_kwargs", ()))
        ]
        event = event_of_values(entry["op_name"], arguments)
        count = int(entry.get("count", 1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path}: entry {index}: {type(error).__name__}: {error}; {_REMEDY}"
        ) from error
    return {**event, "operation_count": count}


def _ir_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = tensor_spec(value.dtype, tuple(value.shape), value.stride())
    if isinstance(value, TensorSpec):
        real = value.dtype.is_floating_point or value.dtype.is_complex
        return TensorCfg(
            list(value.dims),
            profiler_name(value.dtype),
            list(value.strides),
            "normal" if real else "zeros",
        )
    if isinstance(value, TorchValue):
        return enum_number(value)
    if isinstance(value, tuple | list):
        return [_ir_value(element) for element in value]
    return str(value) if isinstance(value, complex) else value


def _json_value(value: Any) -> Any:
    if isinstance(value, TensorCfg):
        return asdict(value)
    if isinstance(value, list):
        return [_json_value(element) for element in value]
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
