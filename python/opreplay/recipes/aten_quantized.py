"""Scales and zero points of quantization: scales positive, zero points within the range."""

from __future__ import annotations

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    "aten::quantize_per_tensor",
    "aten::quantize_per_channel",
    "aten::fake_quantize_per_tensor_affine",
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::fake_quantize_per_channel_affine",
    "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::_fake_quantize_learnable_per_tensor_affine",
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_learnable_per_channel_affine",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
    "aten::fused_moving_avg_obs_fake_quant",
    "aten::_fused_moving_avg_obs_fq_helper",
    "aten::_fused_moving_avg_obs_fq_helper_functional",
    "aten::_make_per_channel_quantized_tensor",
)
def quantization_parameters(call: RecipeCall) -> str | None:
    """Scales lie about one, zero points are zero, switches are on."""
    scales = call.fill_floats(0.5, 1.5, "scale", "scales")
    for tensor in call.present("zero_point", "zero_points"):
        tensor.write(tensor.unfilled.new_zeros(tensor.dims))
    for tensor in call.present("fake_quant_enabled", "observer_on", "fake_quant_on"):
        tensor.write(tensor.unfilled.new_ones(tensor.dims))
    return f"{', '.join(scales)} uniform in [0.5, 1.5), zero points 0" if scales else None
