"""Positions of maxima for the way back through pooling: inside the window they came from."""

from __future__ import annotations

import math

from torch.nn import functional

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(call: RecipeCall) -> str:
    """Positions are those that the pooling itself finds on the input."""
    pool = (
        functional.max_pool2d if call.op.startswith("aten::max_pool2d") else functional.max_pool3d
    )
    _, indices = pool(
        call.tensor("self").value,
        call.value("kernel_size"),
        call.value("stride") or None,
        call.value("padding"),
        call.value("dilation"),
        call.value("ceil_mode"),
        return_indices=True,
    )
    call.tensor("indices").write(indices)
    return "indices of the maxima of self"


@recipe("aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(call: RecipeCall) -> str:
    """Positions are those that the pooling itself finds on the input."""
    spatial = 2 if call.op.startswith("aten::adaptive_max_pool2d") else 3
    pool = functional.adaptive_max_pool2d if spatial == 2 else functional.adaptive_max_pool3d
    size = call.tensor("grad_output").dims[-spatial:]
    _, indices = pool(call.tensor("self").value, size, return_indices=True)
    call.tensor("indices").write(indices)
    return "indices of the maxima of self"


@recipe("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward")
def fractional_max_pool_backward(call: RecipeCall) -> str:
    """Positions lie anywhere in the pooled plane, uniform."""
    spatial = 2 if call.op.startswith("aten::fractional_max_pool2d") else 3
    plane = math.prod(call.tensor("self").dims[-spatial:])
    call.tensor("indices").fill_integers(0, plane)
    return f"indices uniform in [0, {plane})"


@recipe("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(call: RecipeCall) -> str:
    """Positions in the plane that is filled, none twice in a plane."""
    spatial = 2 if call.op == "aten::max_unpool2d" else 3
    plane = math.prod(call.value("output_size")[-spatial:])
    call.tensor("indices").write_distinct(plane, over=range(-spatial, 0))
    return f"indices distinct in [0, {plane})"
