"""Sweeps: planned calls and settings come in, a plan with a call for each point goes out."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from opreplay.plan import Plan, PlannedArgument, PlannedCall, PlannedOperator, PlannedTensor
from opreplay.recipes import Recipe, find_recipe
from opreplay.recipes.symbols import Sizes
from opreplay.trace.call import Point, RecordedTimes, Skipped

__all__ = ["read_setting", "sweep"]

_NUMBER = re.compile(r"(\d+)([km]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_NO_TIMES = RecordedTimes(0.0, 0.0, 0.0)


def read_setting(text: str) -> tuple[str, tuple[str, ...]]:
    """Reads ``NAME=VALUE,VALUE``.

    Raises:
        ValueError: There is no name, or no value, or a value stands there twice.
    """
    name, separator, listed = text.partition("=")
    values = tuple(part.strip() for part in listed.split(","))
    if not (name and separator and all(values)):
        raise ValueError(f"{text!r} is not NAME=VALUE,VALUE")
    if len(set(values)) < len(values):
        raise ValueError(f"{text!r} has a value twice")
    return name, values


def sweep(calls: Iterable[PlannedCall], settings: Iterable[tuple[str, tuple[str, ...]]]) -> Plan:
    """Returns every combination of the settings for each call, the last setting fastest.

    A setting names a symbol that the call's recipe declares, a parameter of the recipe, or sizes:
    ``"self.0"`` is dim 0 of argument ``self``, and ``"self.1+mat2.0"`` sets two dims alike. A
    symbol changes all that follows it; a size changes nothing but itself. What the operator cannot
    take is a call that is left out with ``schema_mismatch``.

    The calls of a plan have no recorded times, because nobody recorded them.

    Raises:
        ValueError: A call has nothing of a setting's name, or a value is malformed.
    """
    given: dict[str, tuple[str, ...]] = {}
    for name, values in settings:
        if name in given:
            raise ValueError(f"{name} is set twice: give all its values at once")
        given[name] = values
    points = []
    for call in calls:
        if isinstance(call.outcome, PlannedOperator):
            for name, values in given.items():
                for value in values:
                    _check(call.outcome, name, value)
        for combination in itertools.product(*given.values()):
            points.append(_point(call, tuple(zip(given, combination, strict=True))))
    return Plan(tuple(points))


def _check(operator: PlannedOperator, name: str, value: str) -> None:
    """Refuses a name that the call has not, and a value that is none of its kind."""
    recipe = find_recipe(operator.resolved_op)
    if name in _symbols(recipe):
        _integer(name, value)
    elif name in _parameters(operator):
        _read_parameter(recipe, name, value)
    else:
        for argument, dim in _sizes(operator, recipe, name):
            _integer(f"{argument}.{dim}", value, least=0)


def _symbols(recipe: Recipe | None) -> tuple[str, ...]:
    return recipe.symbols.names if recipe is not None and recipe.symbols is not None else ()


def _parameters(operator: PlannedOperator) -> tuple[str, ...]:
    return () if operator.recipe is None else tuple(name for name, _ in operator.recipe.parameters)


def _read_parameter(recipe: Recipe | None, name: str, value: str) -> str | int | float:
    for parameter in () if recipe is None else recipe.parameters:
        if parameter.name == name:
            return parameter.read(value)
    raise ValueError(f"the recipe of this plan has a parameter {name}, the one here has not")


def _sizes(operator: PlannedOperator, recipe: Recipe | None, name: str) -> list[tuple[str, int]]:
    tensors = _tensors(operator)
    found = []
    for part in name.split("+"):
        argument, _, dim = part.rpartition(".")
        rank = len(tensors[argument].dims) if argument in tensors else 0
        if not (dim.isdecimal() and int(dim) < rank):
            there = [*_symbols(recipe), *_parameters(operator)]
            for one, tensor in tensors.items():
                last = len(tensor.dims) - 1
                there += [f"{one}.0 to .{last}" if last else f"{one}.0"] if tensor.dims else []
            raise ValueError(
                f"{operator.resolved_op} has no {part!r} to set; it has {', '.join(there)}"
            )
        found.append((argument, int(dim)))
    return found


def _tensors(operator: PlannedOperator) -> dict[str, PlannedTensor]:
    return {a.name: a.value for a in operator.arguments if isinstance(a.value, PlannedTensor)}


def _integer(name: str, text: str, *, least: int = 1) -> int:
    found = _NUMBER.fullmatch(text)
    number = -1 if found is None else int(found[1]) * _UNITS[found[2].lower()]
    if number < least:
        raise ValueError(f"{name} is {text!r}, expected an integer from {least}, as 64 or 8k")
    return number


def _point(call: PlannedCall, settings: tuple[tuple[str, str], ...]) -> PlannedCall:
    point = Point(call.signature, settings)
    name = repr((call.signature, call.step, settings)).encode()
    made = replace(
        call,
        signature=hashlib.sha256(name).hexdigest()[:16],
        count=0,
        host=_NO_TIMES,
        device=None,
        kernels=(),
        in_graph=False,
        point=point,
    )
    if isinstance(made.outcome, Skipped):
        return made
    try:
        return _changed(made, made.outcome, dict(settings))
    except ValueError as error:
        return replace(made, outcome=Skipped("schema_mismatch", str(error)))


def _changed(
    call: PlannedCall, operator: PlannedOperator, settings: Mapping[str, str]
) -> PlannedCall:
    recipe, batch = find_recipe(operator.resolved_op), call.batch
    symbols = {
        name: _integer(name, text) for name, text in settings.items() if name in _symbols(recipe)
    }
    tensors = _tensors(operator)
    sizes = Sizes(
        operator.resolved_op,
        {name: tensor.dims for name, tensor in tensors.items()},
        {a.name: a.value for a in operator.arguments if type(a.value) is int},
    )
    if symbols and recipe is not None and recipe.symbols is not None:
        batch = recipe.symbols.apply(sizes, symbols)
        if sizes.unknown:
            raise ValueError(
                f"nothing tells whether {', '.join(sizes.unknown)} of {operator.resolved_op} "
                f"follows {', '.join(symbols)}"
            )
    parameters = {} if operator.recipe is None else dict(operator.recipe.parameters)
    for name, text in settings.items():
        if name in symbols:
            continue
        if name in parameters:
            parameters[name] = _read_parameter(recipe, name, text)
            continue
        for tensor_name, dim in _sizes(operator, recipe, name):
            sizes.dims[tensor_name][dim] = _integer(name, text, least=0)
    arguments: list[PlannedArgument] = []
    notes: list[str] = []
    for argument in operator.arguments:
        value = argument.value
        if isinstance(value, PlannedTensor):
            value = _resized(value, tuple(sizes.dims[argument.name]))
            notes += _lost(argument, value)
        elif argument.name in sizes.numbers:
            value = sizes.numbers[argument.name]
        arguments.append(replace(argument, value=value))
    chosen = operator.recipe
    if chosen is not None:
        chosen = replace(chosen, parameters=tuple(parameters.items()))
    return replace(
        call,
        batch=batch,
        outcome=replace(
            operator,
            arguments=tuple(arguments),
            assumptions=(*operator.assumptions, *notes),
            recipe=chosen,
        ),
    )


def _lost(argument: PlannedArgument, made: PlannedTensor) -> list[str]:
    """Says what a tensor of other sizes can not have as it was recorded."""
    value = argument.value
    if not isinstance(value, PlannedTensor) or made is value:
        return []
    notes = []
    if value.storage is not None:
        notes.append(f"{argument.name} shared its storage with others; resized it has its own")
    if value.true_elements is not None:
        notes.append(f"{argument.name} had {value.true_elements} true elements; resized it may not")
    return notes


def _resized(tensor: PlannedTensor, dims: tuple[int, ...]) -> PlannedTensor:
    """Returns the tensor with other sizes, its dims in the recorded order, its gaps as they were.

    A gap is what lies between the end of the inner dims and the stride of the next: rows of a
    wider matrix stay as much wider. Expanded dims stay expanded.
    """
    if dims == tensor.dims:
        return tensor
    strides = list(tensor.strides)
    inner_first = sorted(range(len(dims)), key=lambda dim: (tensor.strides[dim], -dim))
    recorded = made = 1
    for dim in inner_first:
        if tensor.strides[dim] == 0:
            continue
        strides[dim] = made + max(tensor.strides[dim] - recorded, 0)
        recorded = max(tensor.strides[dim], recorded) * max(tensor.dims[dim], 1)
        made = strides[dim] * max(dims[dim], 1)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(dims, strides, strict=True))
    return PlannedTensor(tensor.dtype, dims, tuple(strides), reach if math.prod(dims) else 0)
