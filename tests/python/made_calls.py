"""Builders of resolved calls for tests: from a schema of torch, or from nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from opreplay.inputs import Inputs, make_inputs
from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec

GIB = 1 << 30


def tensor(dtype, *dims, strides=None, storage=None):
    """A tensor to be made, contiguous unless strides say otherwise."""
    if strides is None:
        strides = tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))
    reach = 0 if 0 in dims else 1 + sum((n - 1) * s for n, s in zip(dims, strides, strict=True))
    return TensorSpec(dtype, dims, strides, reach if storage is None else storage)


def f32(*dims, **layout):
    return tensor(torch.float32, *dims, **layout)


def i64(*dims, **layout):
    return tensor(torch.int64, *dims, **layout)


def i32(*dims, **layout):
    return tensor(torch.int32, *dims, **layout)


def mask(*dims, **layout):
    return tensor(torch.bool, *dims, **layout)


def schema_of(op, overload):
    """The schema that torch has for an operator's overload."""
    known = {schema.overload_name: schema for schema in torch._C._jit_get_schemas_for_operator(op)}
    assert overload in known, f"{op} has the overloads {list(known)}"
    return known[overload]


def call(op, /, overload="", **values):
    """A call of an operator that torch has; arguments not named take their defaults."""
    schema = schema_of(op, overload)
    arguments = []
    for parameter in schema.arguments:
        value = values.pop(parameter.name, parameter.default_value)
        written = parameter.alias_info is not None and parameter.alias_info.is_write
        value = tuple(value) if isinstance(value, list) else value
        output = written and parameter.is_out
        arguments.append(Argument(parameter.name, str(parameter.type), value, written, output))
    assert not values, f"{op} has no argument {list(values)}"
    return ResolvedCall(op, op, overload, str(schema), tuple(arguments), (), ())


def foreign_call(op, /, **values):
    """A call of an operator that nothing here registers."""
    arguments = tuple(
        Argument(name, "Tensor", value, False, False) for name, value in values.items()
    )
    return ResolvedCall(op, op, "", None, arguments, (), ())


def make(resolved, *, seed=0, budget=GIB, **options):
    return make_inputs(resolved, device="cpu", seed=seed, memory_budget=budget, **options)


def made(resolved, **options):
    """The inputs of a call as an object with the schema's argument names."""
    inputs = make(resolved, **options)
    assert isinstance(inputs, Inputs), inputs
    names = [argument.name for argument in resolved.arguments]
    return SimpleNamespace(**dict(zip(names, inputs.arguments, strict=True)), _inputs=inputs)


def run(resolved, inputs):
    """Runs the operator of torch that a call names on inputs made for it."""
    operator = torch._C._get_operation_overload(resolved.resolved_op, resolved.overload)[0]
    schema = schema_of(resolved.resolved_op, resolved.overload)
    positional = []
    keywords = {}
    for parameter in schema.arguments:
        value = getattr(inputs, parameter.name)
        if parameter.kwarg_only:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return operator(*positional, **keywords)
