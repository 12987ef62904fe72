"""Index tensors that the profiler drops: the operators inside a call tell their shapes.

`aten::index` and its like take a list of optional tensors, of which the profiler writes nothing.
Inside, torch (ATen/native/TensorAdvancedIndexing.cpp) turns a mask into positions with `nonzero`,
casts int32 positions with `to`, broadcasts with `expand`, gives `self` the strides of the result
with `as_strided`, and gives each index tensor the result's dimensions with `reshape`. Where these
fit together in one way only, the list is known but for its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson

from opreplay.trace.call import Dims, RecordedArgument
from opreplay.trace.events import Events, Examples
from opreplay.trace.nesting import Nest

__all__ = ["INDEX_OPS", "PLACE", "find_indices", "with_indices"]

INDEX_OPS = frozenset(
    {
        "aten::index",
        "aten::_unsafe_index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_unsafe_index_put",
        "aten::_index_put_impl_",
    }
)
"""Operators whose second argument is a list of optional index tensors."""

PLACE = 1
"""Place of the list among the arguments."""

_POSITIONS = "long int"

Arguments = Sequence[RecordedArgument]


@dataclass(frozen=True, slots=True)
class _Inner:
    """An operator that ran inside."""

    name: str
    arguments: Arguments


def with_indices(ops: Events, tree: Nest) -> Events:
    """Returns the operators, those with dropped indices with what ran inside them says.

    Args:
        ops: Operators by thread and start.
        tree: Which runs inside which.
    """
    names, arguments = list(ops.examples.names), list(ops.examples.arguments)
    lacking = [name in INDEX_OPS and _lacks_indices(arguments[i]) for i, name in enumerate(names)]
    if not any(lacking):
        return ops
    fields, distinct = dict(ops.examples.fields), ops.distinct.copy()
    known: dict[bytes, int] = {}
    for row in np.flatnonzero(ops.where(lacking)).tolist():
        inside = ops.distinct[row : row + int(tree.size[row])]
        key = inside.tobytes()
        if key not in known:
            known[key] = own = int(ops.distinct[row])
            given = arguments[own] or ()
            inner = [_Inner(names[i], arguments[i] or ()) for i in inside[1:].tolist()]
            found = find_indices(given, inner)
            if found is not None:
                known[key] = len(names)
                names.append(names[own])
                arguments.append((*given[:PLACE], found, *given[PLACE + 1 :]))
                if own in fields:
                    fields[known[key]] = fields[own]
        distinct[row] = known[key]
    return replace(
        ops, distinct=distinct, examples=Examples(tuple(names), tuple(arguments), fields)
    )


def _lacks_indices(arguments: Arguments | None) -> bool:
    return arguments is not None and len(arguments) > PLACE and not arguments[PLACE].type


def find_indices(arguments: Arguments, inner: Sequence[_Inner]) -> RecordedArgument | None:
    """Returns the list of index tensors of a call; None if what ran inside leaves it open.

    Args:
        arguments: Arguments of the call; the first is what is indexed.
        inner: What ran inside, in order.
    """
    source = arguments[0]
    at = max((i for i, one in enumerate(inner) if _restrides(one, source)), default=None)
    if at is None:
        return None
    indices = []
    for one in inner[at + 1 :]:
        if one.name == "aten::reshape":
            indices.append(one.arguments[0])
        elif one.name != "aten::view":
            break
    before = [one for one in inner[:at] if one.arguments]
    if any(one.name in ("aten::expand", "aten::permute") for one in before):
        return None
    shapes = {index.dims for index in indices}
    if len(shapes) != 1 or any(index.type != _POSITIONS for index in indices):
        return None
    (shape,) = shapes
    first = _place(source, shape, len(indices), inner[at].arguments)
    if first is None:
        return None
    masks = [one.arguments[0] for one in before if one.name == "aten::nonzero"]
    casts = [one.arguments[0] for one in before if one.name == "aten::to"]
    if masks:
        mask = masks[0]
        covered = source.dims[first : first + len(indices)]
        if len(masks) > 1 or casts or mask.dims != covered or len(shape) != 1:
            return None
        return _listed(first, masks, true_elements=math.prod(_flat(shape)))
    if casts:
        # Which of several were cast is open.
        if len(casts) != len(indices) or {cast.dims for cast in casts} != shapes:
            return None
        return _listed(first, casts)
    return _listed(first, indices)


def _restrides(inner: _Inner, source: RecordedArgument) -> bool:
    if inner.name != "aten::as_strided" or len(inner.arguments) < 3:
        return False
    given = inner.arguments[0]
    return (given.type, given.dims) == (source.type, source.dims)


def _place(source: RecordedArgument, shape: Dims, count: int, restrided: Arguments) -> int | None:
    """Returns the first of `count` indexed dims of the source; None if that is not certain.

    The result of an index has the shape of the indices in the place of the indexed dims, and in
    `as_strided` the stride 0 there.
    """
    sizes, strides = _integers(restrided[1].value), _integers(restrided[2].value)
    if sizes is None or strides is None:
        return None
    width, dims, steps = len(shape), source.dims, source.strides
    fitting = [
        first
        for first in range(len(dims) - count + 1)
        if (*dims[:first], *shape, *dims[first + count :]) == sizes
        and not any(strides[first : first + width])
        and (
            not steps
            or (*steps[:first], *steps[first + count :])
            == (*strides[:first], *strides[first + width :])
        )
    ]
    return fitting[0] if len(fitting) == 1 else None


def _integers(text: str | None) -> tuple[int, ...] | None:
    try:
        found = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return None
    return tuple(found) if isinstance(found, list) else None


def _listed(
    absent: int, tensors: Arguments, *, true_elements: int | None = None
) -> RecordedArgument:
    """The list as the trace would have it: nothing for each leading dim that is not indexed."""
    strides = [tensor.strides for tensor in tensors if tensor.strides is not None]
    absent_sizes: tuple[tuple[int, ...], ...] = ((),) * absent
    return RecordedArgument(
        type="TensorList",
        dims=absent_sizes + tuple(_flat(tensor.dims) for tensor in tensors),
        strides=absent_sizes + tuple(map(_flat, strides)) if len(strides) == len(tensors) else None,
        value=tensors[0].value,
        elements=("None",) * absent + tuple(tensor.type for tensor in tensors),
        recovered=True,
        true_elements=true_elements,
    )


def _flat(sizes: Dims) -> tuple[int, ...]:
    """Sizes or strides of one tensor."""
    return tuple(size for size in sizes if isinstance(size, int))
