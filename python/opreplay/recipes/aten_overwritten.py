"""Operators that overwrite a tensor without reading it: it stays as allocated."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    *(
        f"aten::{name}_"
        for name in (
            *("bernoulli", "cauchy", "copy", "exponential", "fill", "geometric", "log_normal"),
            *("normal", "random", "set", "uniform", "zero"),
        )
    ),
    "aten::_foreach_copy_",
    "aten::_foreach_zero_",
)
def overwritten(call: RecipeCall) -> str | None:
    """Leaves `self` alone: random values in it would cost a pass and change nothing."""
    for tensor in call.present("self"):
        tensor.leave_unfilled()
    return "p uniform in [0, 0.9375)" if call.fill_floats(0.0, 0.9375, "p") else None
