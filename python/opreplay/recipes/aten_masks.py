"""Masks that let through as many elements as the other arguments have room for."""

from __future__ import annotations

import math

import torch

from opreplay.recipes.call import InputTensor, RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _copies(mask: InputTensor, other: InputTensor) -> int:
    """Returns how often each element of a mask is repeated where it is broadcast to a tensor."""
    # torch gives the function no types.
    together = math.prod(torch.broadcast_shapes(mask.dims, other.dims))  # type: ignore[no-untyped-call]
    return max(1, together // max(1, mask.numel))


@recipe("aten::masked_scatter", "aten::masked_scatter_")
def masked_scatter(call: RecipeCall) -> str:
    """No more elements are masked than the source holds; half of them at most."""
    mask = call.tensor("mask")
    room = call.tensor("source").numel // _copies(mask, call.tensor("self"))
    return _let_through(mask, min(mask.numel // 2, room))


@recipe("aten::masked_scatter_backward")
def masked_scatter_backward(call: RecipeCall) -> str:
    """Half of the elements are masked, no more than the source that the gradient goes to has."""
    mask = call.tensor("mask")
    room = math.prod(call.value("sizes")) // _copies(mask, call.tensor("grad_output"))
    return _let_through(mask, min(mask.numel // 2, room))


@recipe("aten::masked_select_backward")
def masked_select_backward(call: RecipeCall) -> str:
    """As many elements are masked as the gradient has values."""
    mask = call.tensor("mask")
    return _let_through(mask, call.tensor("grad").numel // _copies(mask, call.tensor("input")))


def _let_through(mask: InputTensor, count: int) -> str:
    mask.write_true(count)
    return f"mask true for {count} of {mask.numel} elements"
