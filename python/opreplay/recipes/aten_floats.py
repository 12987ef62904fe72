"""Floats within the domain of an operator: no NaN where the model had none."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []

POSITIVE = (0.5, 1.5)
"""Range where a logarithm, a root or a divisor is harmless."""

PROBABILITY = (0.0, 0.9375)
"""Range of probabilities; below one in every float dtype after rounding."""


def _both(*names: str) -> tuple[str, ...]:
    """Returns aten names with and without the underscore of the in-place form."""
    return tuple(f"aten::{name}{suffix}" for name in names for suffix in ("", "_"))


def _positive(call: RecipeCall, *names: str) -> str | None:
    filled = call.fill_floats(*POSITIVE, *names)
    return f"{', '.join(filled)} uniform in [0.5, 1.5)" if filled else None


@recipe(
    *_both(
        *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "polygamma"),
        *("xlogy", "float_power", "pow", "igamma", "igammac", "arccosh", "acosh", "mvlgamma"),
    ),
    "aten::special_entr",
    "aten::special_xlogy",
    "aten::special_xlog1py",
    "aten::special_gammaln",
    "aten::special_psi",
    "aten::special_digamma",
    "aten::special_log1p",
    "aten::special_zeta",
    "aten::special_gammainc",
    "aten::special_gammaincc",
    *_both("_foreach_sqrt", "_foreach_rsqrt", "_foreach_log", "_foreach_log2", "_foreach_log10"),
    *_both("_foreach_log1p", "_foreach_lgamma", "_foreach_pow"),
    "aten::poisson",
    "aten::multinomial",
    "aten::_standard_gamma",
    "aten::_sample_dirichlet",
)
def positive(call: RecipeCall) -> str | None:
    """Floats are positive."""
    return _positive(call, "self", "exponent", "other", "x", "n")


@recipe(
    *_both("logit"),
    "aten::bernoulli",
    "aten::special_logit",
    "aten::special_ndtri",
    "aten::binomial",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
    "aten::quantile",
    "aten::nanquantile",
    "aten::fractional_max_pool2d",
    "aten::fractional_max_pool3d",
)
def probabilities(call: RecipeCall) -> str | None:
    """Floats that stand for probabilities lie in [0, 1)."""
    candidates = {
        "aten::quantile": ("q",),
        "aten::nanquantile": ("q",),
        "aten::binomial": ("prob",),
        "aten::fractional_max_pool2d": ("random_samples",),
        "aten::fractional_max_pool3d": ("random_samples",),
    }.get(call.op, ("self", "p", "target"))
    names = call.fill_floats(*PROBABILITY, *candidates)
    if call.op == "aten::binomial":
        call.fill_floats(1, 100, "count")
    return f"{', '.join(names)} uniform in [0, 0.9375)" if names else None


@recipe("aten::normal", "aten::normal_functional")
def normal(call: RecipeCall) -> str | None:
    """Standard deviations are positive."""
    return _positive(call, "std")


@recipe("aten::cov")
def cov(call: RecipeCall) -> str | None:
    """Weights of observations are positive."""
    return _positive(call, "aweights")


@recipe("aten::istft")
def istft(call: RecipeCall) -> str | None:
    """The window has no zero, so that every sample can be recovered."""
    return _positive(call, "window")


@recipe(
    "aten::batch_norm",
    "aten::_batch_norm_impl_index",
    "aten::_batch_norm_impl_index_backward",
    "aten::_batch_norm_no_update",
    "aten::_batch_norm_with_update",
    "aten::_batch_norm_with_update_functional",
    "aten::batch_norm_backward",
    "aten::batch_norm_backward_elemt",
    "aten::batch_norm_backward_reduce",
    "aten::batch_norm_elemt",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats",
    "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward",
    "aten::instance_norm",
    "aten::miopen_batch_norm",
    "aten::miopen_batch_norm_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit_no_training",
    "aten::native_group_norm_backward",
    "aten::native_layer_norm_backward",
    "aten::_fused_rms_norm_backward",
)
def norm_statistics(call: RecipeCall) -> str | None:
    """Variances and their inverse roots are positive, counts too."""
    return _positive(
        call,
        *("running_var", "save_var", "save_invstd", "save_var_transform", "invstd", "rstd"),
        *("counts", "count"),
    )


@recipe("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scales(call: RecipeCall) -> str | None:
    """Scales of quantized operands are positive."""
    return _positive(call, "scale_a", "scale_b", "scale_result")
