"""Positions of rotary embeddings: rows of the table of cosines and sines."""

from __future__ import annotations

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    "_C::rotary_embedding",
    "_C::fused_qk_norm_rope",
    "sgl_kernel::rotary_embedding",
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
)
def rotary_positions(call: RecipeCall) -> str:
    """Tokens count up through the table and begin again at its end, as prompts do."""
    name = next(
        (n for n in ("positions", "position_ids", "pos_ids") if call.has_tensor(n)), "positions"
    )
    positions = call.tensor(name)
    rows = call.tensor("cos_sin_cache").dims[0]
    if rows == 0:
        raise RecipeError("cos_sin_cache has no rows")
    tokens = positions.dims[-1] if positions.dims else 1
    values = torch.arange(tokens, device=positions.device).remainder(rows)
    positions.write(values.expand(positions.dims).to(positions.dtype))
    return f"{name} count up in [0, {rows})"
