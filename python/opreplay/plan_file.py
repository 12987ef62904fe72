"""The plan file: a plan comes in and JSON goes out, and back; a bad file is one clear sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from opreplay.document import Node, read_batch
from opreplay.plan import (
    Plan,
    PlannedArgument,
    PlannedCall,
    PlannedOperator,
    PlannedRecipe,
    PlannedTensor,
    PlannedValue,
)
from opreplay.resolve.call import TorchValue
from opreplay.trace.call import REASONS, RecordedTimes, Skipped

__all__ = ["FORMAT", "PlanError", "is_plan", "read_plan", "write_plan"]

FORMAT = "opreplay-plan/2"

_KINDS: tuple[str, ...] = ("dtype", "layout", "memory_format", "device", "generator")
_HEAD_BYTES = 4096


class PlanError(ValueError):
    """A file is not a plan; the text is one sentence with file, place, cause and remedy."""


def write_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan as JSON (docs/plan.schema.json describes it)."""
    fields = {
        "format": FORMAT,
        "recorded_on": list(plan.recorded_on),
        "calls": [_call_fields(call) for call in plan.calls],
    }
    Path(path).write_bytes(orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")


def is_plan(path: str | Path) -> bool:
    """Tells a plan from a trace by its first bytes; an unreadable file is no plan."""
    try:
        if not Path(path).is_file():  # reading from a pipe would take the bytes from the reader
            return False
        with Path(path).open("rb") as stream:
            return b'"opreplay-plan/' in stream.read(_HEAD_BYTES)
    except OSError:
        return False


def read_plan(path: str | Path) -> Plan:
    """Reads a plan file.

    Raises:
        PlanError: The file is unreadable, is not a plan or holds a malformed entry.
    """
    try:
        content = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise PlanError(
            f"{path}: byte {error.pos}: not JSON ({error.msg}); {_remedy(path)}"
        ) from error
    root = _Node(content, "", path)
    found = root.field("format", _Node.text)
    if found != FORMAT:
        raise PlanError(
            f"{path}: format is {found!r}, this version reads {FORMAT!r}; {_remedy(path)}"
        )
    return Plan(
        root.field("calls", lambda node: node.each(_read_call)),
        root.field("recorded_on", lambda node: node.each(_Node.text)),
    )


def _remedy(path: str | Path) -> str:
    return f"write it again with: opreplay plan TRACE -o {path}"


def _call_fields(call: PlannedCall) -> dict[str, Any]:
    common = {
        "op": call.op,
        "signature": call.signature,
        "step": call.step,
        "parent": call.parent,
        "leaf": call.leaf,
        "count": call.count,
        "recorded_us": {
            "host": _times_fields(call.host),
            "device": None if call.device is None else _times_fields(call.device),
        },
        "kernels_recorded": [{"name": name, "count": count} for name, count in call.kernels],
        "in_graph": call.in_graph,
        "batch": None if call.batch is None else asdict(call.batch),
    }
    if isinstance(call.outcome, Skipped):
        skipped = {"reason": call.outcome.reason, "detail": call.outcome.detail}
        return common | {"operator": None, "skipped": skipped}
    return common | {"operator": _operator_fields(call.outcome), "skipped": None}


def _times_fields(times: RecordedTimes) -> dict[str, float]:
    return {"median": times.median, "total": times.total, "self_total": times.self_total}


def _operator_fields(operator: PlannedOperator) -> dict[str, Any]:
    return {
        "resolved_op": operator.resolved_op,
        "overload": operator.overload,
        "schema": operator.schema,
        "arguments": [
            {
                "name": argument.name,
                "type": argument.type,
                "value": _value_fields(argument.value),
                "written": argument.written,
                "output": argument.output,
                "producer": argument.producer and {"operator": argument.producer},
            }
            for argument in operator.arguments
        ],
        "assumptions": list(operator.assumptions),
        "schemas_rejected": [{"schema": schema, "why": why} for schema, why in operator.rejected],
        "recipe": operator.recipe
        and {"name": operator.recipe.name, "parameters": dict(operator.recipe.parameters)},
    }


def _value_fields(value: PlannedValue) -> Any:
    if isinstance(value, PlannedTensor):
        return {
            "tensor": {
                "dtype": value.dtype,
                "dims": list(value.dims),
                "strides": list(value.strides),
                "storage_numel": value.storage_numel,
                **({} if value.storage is None else {"storage": list(value.storage)}),
                **({} if value.true_elements is None else {"true_elements": value.true_elements}),
            }
        }
    if isinstance(value, TorchValue):
        return {"torch": {"kind": value.kind, "text": value.text}}
    if isinstance(value, tuple):
        return [_value_fields(element) for element in value]
    if isinstance(value, complex):
        return {"complex": [_value_fields(value.real), _value_fields(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no word for it
    return value


class _Node(Node):
    """A value of a plan file."""

    def failure(self, sentence: str) -> PlanError:
        return PlanError(f"{sentence}; {_remedy(self.path)}")


def _read_call(node: _Node) -> PlannedCall:
    recorded = node.field("recorded_us", lambda times: times)
    operator = node.field("operator", lambda one: one.optional(_read_operator))
    skipped = node.field("skipped", lambda one: one.optional(_read_skipped))
    outcome = operator if skipped is None else skipped
    if outcome is None:
        raise node.error("either 'operator' or 'skipped'")
    return PlannedCall(
        op=node.field("op", _Node.text),
        signature=node.field("signature", _Node.text),
        step=node.field("step", lambda step: step.optional(_Node.text)),
        parent=node.field("parent", lambda parent: parent.optional(_Node.text)),
        leaf=node.field("leaf", _Node.flag),
        count=node.field("count", _Node.count),
        host=recorded.field("host", _read_times),
        device=recorded.field("device", lambda times: times.optional(_read_times)),
        kernels=node.field("kernels_recorded", lambda kernels: kernels.each(_read_kernel)),
        in_graph=node.field("in_graph", _Node.flag),
        batch=node.field("batch", lambda batch: batch.optional(read_batch)),
        outcome=outcome,
    )


def _read_times(node: _Node) -> RecordedTimes:
    return RecordedTimes(
        median=node.field("median", _Node.number),
        total=node.field("total", _Node.number),
        self_total=node.field("self_total", _Node.number),
    )


def _read_kernel(node: _Node) -> tuple[str, int]:
    return node.field("name", _Node.text), node.field("count", _Node.count)


def _read_skipped(node: _Node) -> Skipped:
    return Skipped(
        reason=node.field("reason", lambda reason: reason.choice(REASONS)),
        detail=node.field("detail", _Node.text),
    )


def _read_operator(node: _Node) -> PlannedOperator:
    return PlannedOperator(
        resolved_op=node.field("resolved_op", _Node.text),
        overload=node.field("overload", _Node.text),
        schema=node.field("schema", lambda schema: schema.optional(_Node.text)),
        arguments=node.field("arguments", lambda arguments: arguments.each(_read_argument)),
        assumptions=node.field("assumptions", lambda sentences: sentences.each(_Node.text)),
        rejected=node.field("schemas_rejected", lambda schemas: schemas.each(_read_rejected)),
        recipe=node.field("recipe", lambda recipe: recipe.optional(_read_recipe)),
    )


def _read_recipe(node: _Node) -> PlannedRecipe:
    return PlannedRecipe(
        name=node.field("name", _Node.text),
        parameters=node.field("parameters", lambda known: known.items(_Node.parameter)),
    )


def _read_rejected(node: _Node) -> tuple[str, str]:
    return node.field("schema", _Node.text), node.field("why", _Node.text)


def _read_argument(node: _Node) -> PlannedArgument:
    return PlannedArgument(
        name=node.field("name", _Node.text),
        type=node.field("type", _Node.text),
        value=node.field("value", _read_value),
        written=node.field("written", _Node.flag),
        output=node.field("output", _Node.flag),
        producer=node.field("producer", lambda producer: producer.optional(_read_producer)),
    )


def _read_producer(node: _Node) -> str:
    return node.field("operator", _Node.text)


def _read_value(node: _Node) -> PlannedValue:
    if isinstance(node.value, list):
        return node.each(_read_value)
    if not isinstance(node.value, dict):
        scalar: PlannedValue = node.value
        return scalar
    for kind, read in _OBJECTS.items():
        if node.value.keys() == {kind}:
            return node.field(kind, read)
    raise node.error(f"a value or an object with one of {', '.join(_OBJECTS)}")


def _read_tensor(node: _Node) -> PlannedTensor:
    tensor = PlannedTensor(
        dtype=node.field("dtype", _Node.text),
        dims=node.field("dims", lambda dims: dims.each(_Node.count)),
        strides=node.field("strides", lambda strides: strides.each(_Node.count)),
        storage_numel=node.field("storage_numel", _Node.count),
        storage=_read_storage(node),
        true_elements=node.field("true_elements", _Node.count)
        if "true_elements" in node.value
        else None,
    )
    if len(tensor.dims) != len(tensor.strides):
        raise node.error("as many strides as dims")
    return tensor


def _read_storage(node: _Node) -> tuple[int, int] | None:
    """Reads the storage that a tensor shares; a tensor with its own has no such field."""
    if not isinstance(node.value, dict) or "storage" not in node.value:
        return None
    place = node.field("storage", lambda storage: storage.each(_Node.count))
    if len(place) != 2:
        raise node.error("a storage's number and an offset")
    return place[0], place[1]


def _read_torch(node: _Node) -> TorchValue:
    return TorchValue(
        kind=node.field("kind", lambda kind: kind.choice(_KINDS)),
        text=node.field("text", _Node.text),
    )


def _read_float(node: _Node) -> float:
    return float(node.choice(("inf", "-inf", "nan")))


def _read_complex(node: _Node) -> complex:
    parts = node.each(_read_part)
    if len(parts) != 2:
        raise node.error("two numbers")
    return complex(*parts)


def _read_part(node: _Node) -> float:
    return node.field("float", _read_float) if isinstance(node.value, dict) else node.number()


_OBJECTS: dict[str, Callable[[_Node], PlannedValue]] = {
    "tensor": _read_tensor,
    "torch": _read_torch,
    "float": _read_float,
    "complex": _read_complex,
}
