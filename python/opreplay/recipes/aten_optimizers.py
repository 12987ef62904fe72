"""State of fused optimizers and gradient scaling: squares positive, no gradient infinite."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _set(call: RecipeCall, value: int, *names: str) -> None:
    for tensor in call.present(*names):
        tensor.write(tensor.unfilled.new_full(tensor.dims, value))


@recipe(
    *(
        f"aten::_fused_{name}{suffix}"
        for name in ("adam", "adamw", "adagrad", "sgd")
        for suffix in ("", "_")
    )
)
def fused_optimizer(call: RecipeCall) -> str:
    """One step is done, squares are positive, no gradient was infinite."""
    call.fill_floats(0.5, 1.5, "exp_avg_sqs", "max_exp_avg_sqs", "state_sums")
    _set(call, 1, "state_steps", "grad_scale")
    _set(call, 0, "found_inf")
    call.fill_floats(0.0, 0.01, "lr")
    return "step 1, squares uniform in [0.5, 1.5), no infinity found"


@recipe(
    "aten::_amp_foreach_non_finite_check_and_unscale",
    "aten::_amp_foreach_non_finite_check_and_unscale_",
)
def unscale(call: RecipeCall) -> str:
    """The scale is one, so that a repeated run neither vanishes nor overflows."""
    _set(call, 1, "inv_scale")
    _set(call, 0, "found_inf")
    return "scale 1, no infinity found"


@recipe("aten::_amp_update_scale", "aten::_amp_update_scale_")
def update_scale(call: RecipeCall) -> str:
    """The scale is 65536 as at the start of training, and no gradient was infinite."""
    _set(call, 65536, "self")
    _set(call, 0, "growth_tracker", "found_inf")
    return "scale 65536, no infinity found"
