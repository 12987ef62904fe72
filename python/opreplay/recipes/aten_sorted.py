"""Boundaries that must ascend, repeats that must add up, shifts and sections that must fit."""

from __future__ import annotations

import torch

from opreplay.recipes.call import InputTensor, RecipeCall
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _sort(tensor: InputTensor) -> None:
    """Sorts what the tensor was filled with along its last dimension."""
    if tensor.dims:
        tensor.write(torch.sort(tensor.value, dim=-1).values)


@recipe("aten::bucketize")
def bucketize(call: RecipeCall) -> str:
    """Boundaries ascend."""
    _sort(call.tensor("boundaries"))
    return "boundaries ascend"


@recipe("aten::searchsorted")
def searchsorted(call: RecipeCall) -> str:
    """The sequence ascends; a sorter is the order in which it was already."""
    _sort(call.tensor("sorted_sequence"))
    if call.has_tensor("sorter"):
        sorter = call.tensor("sorter")
        order = torch.arange(sorter.dims[-1], device=sorter.device)
        sorter.write(order.expand(sorter.dims))
    return "sorted_sequence ascends"


@recipe("aten::histogram", "aten::_histogramdd_from_bin_tensors", "aten::histogramdd")
def histogram(call: RecipeCall) -> str | None:
    """Edges of the bins ascend, where they are tensors."""
    bins = call.present("bins")
    for tensor in bins:
        _sort(tensor)
    return "edges of the bins ascend" if bins else None


@recipe("aten::repeat_interleave")
def repeat_interleave(call: RecipeCall) -> str | None:
    """Repeats add up to the recorded output size; without one, each is 0 to 3."""
    if not call.has_tensor("repeats"):
        return None
    repeats, total = call.tensor("repeats"), call.value("output_size")
    if total is None:
        repeats.fill_integers(0, 4)
        return "repeats uniform in [0, 4)"
    count = repeats.numel
    if call.has_tensor("self") and count == 1:
        size = call.tensor("self").numel
        if call.has("dim"):
            size = call.tensor("self").dims[call.value("dim")]
        total //= max(size, 1)
    repeats.write_list(split(total, count))
    return f"repeats add up to {total}"


@recipe("aten::tensor_split")
def tensor_split(call: RecipeCall) -> str | None:
    """Split points ascend within the dimension; a number of sections is at least one."""
    name = "tensor_indices_or_sections"
    if not call.has(name):
        return None
    points = call.tensor(name)
    size = call.tensor("self").dims[call.value("dim")]
    if points.dims:
        points.write_list(starts(split(size, points.dims[0] + 1))[1:-1])
        return f"split points even in [0, {size})"
    points.fill_integers(2, 3)
    return "two sections"


@recipe(
    "aten::bitwise_left_shift",
    "aten::bitwise_left_shift_",
    "aten::bitwise_right_shift",
    "aten::bitwise_right_shift_",
    "aten::__lshift__",
    "aten::__ilshift__",
    "aten::__rshift__",
    "aten::__irshift__",
)
def shift(call: RecipeCall) -> str | None:
    """Shifts are shorter than the shortest integer."""
    if not call.has_tensor("other"):
        return None
    call.tensor("other").fill_integers(0, 8)
    return "shifts uniform in [0, 8)"


@recipe("aten::_assert_async", "aten::_functional_assert_async")
def assert_async(call: RecipeCall) -> str:
    """The condition holds."""
    condition = call.tensor("self")
    condition.write(torch.ones_like(condition.value))
    return "the condition holds"


@recipe("aten::_spdiags")
def spdiags(call: RecipeCall) -> str:
    """Offsets of diagonals, none twice."""
    offsets = call.tensor("offsets")
    offsets.write_list(list(range(offsets.numel)))
    return "offsets ascend from 0"


@recipe("aten::narrow")
def narrow(call: RecipeCall) -> str | None:
    """A start that is a tensor lies within the dimension; nothing else is read."""
    call.tensor("self").leave_unfilled()
    if not call.has_tensor("start"):
        return None
    end = call.tensor("self").dims[call.value("dim")] - call.value("length") + 1
    call.tensor("start").fill_integers(0, end)
    return f"start uniform in [0, {end})"
