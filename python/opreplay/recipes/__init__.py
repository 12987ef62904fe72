"""Recipes: a materialised call comes in, values that its operator can work with go out.

Built-in recipes live in the modules beside this one, a family of operators in each.
"""

from opreplay.recipes.call import (
    DefaultFill,
    InputTensor,
    RecipeCall,
    RecipeError,
    run_operator,
)
from opreplay.recipes.registry import (
    ENTRY_POINT_GROUP,
    Pools,
    Recipe,
    find_recipe,
    list_recipes,
    recipe,
    register_recipe,
    registering_as,
    remove_recipe,
)
from opreplay.recipes.symbols import Sizes, Symbols

__all__ = [
    "ENTRY_POINT_GROUP",
    "DefaultFill",
    "InputTensor",
    "Pools",
    "Recipe",
    "RecipeCall",
    "RecipeError",
    "Sizes",
    "Symbols",
    "find_recipe",
    "list_recipes",
    "recipe",
    "register_recipe",
    "remove_recipe",
    "run_operator",
]

with registering_as("built-in"):
    from opreplay.recipes import (  # noqa: F401  (each registers its recipes)
        aten_attention,
        aten_floats,
        aten_index,
        aten_linalg,
        aten_losses,
        aten_masks,
        aten_optimizers,
        aten_overwritten,
        aten_pooling,
        aten_quantized,
        aten_sequences,
        aten_sorted,
        aten_sparse,
        aten_views,
        cache_writes,
        fbgemm,
        flash_attention,
        jagged,
        mla,
        moe,
        moe_grouped,
        moe_sorted,
        paged_attention,
        quantized_linear,
        sparse_index,
        states,
        torchvision,
        vllm_cpu,
    )
