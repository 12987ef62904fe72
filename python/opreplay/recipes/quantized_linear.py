"""Linear layers with packed weights, GPTQ's and Marlin's: any bits, and orders of the rows."""

from __future__ import annotations

from opreplay.recipes.call import InputTensor, RecipeCall
from opreplay.recipes.moe_routing import fill_quantized
from opreplay.recipes.registry import recipe

__all__: list[str] = []

_ORDERS = ("perm", "perm_or_none", "q_perm")
"""int32 [K], or empty: the order in which the rows of a weight are read."""
_GROUPS = ("b_g_idx", "g_idx", "g_idx_or_none")
"""int32 [K], or empty: the group of each row, whose scale it takes."""
_SCALES = ("b_gptq_scales", "b_scales")
"""[groups, N]."""
_SHUFFLED = ("use_exllama", "use_shuffle")
"""True where a weight lies in the order that `_GROUPS` then holds in place of groups."""


@recipe(
    "_C::permute_cols",
    "_C::gptq_shuffle",
    "_C::gptq_marlin_repack",
    "sgl_kernel::gptq_shuffle",
    "sgl_kernel::gptq_marlin_repack",
)
def reordered_rows(call: RecipeCall) -> str:
    """The order is a permutation, or empty where rows stay."""
    call.require(*_ORDERS)
    fill_quantized(call)
    return _write_orders(call) or "rows stay in their order"


@recipe(
    "_C::gptq_gemm",
    "_C::gptq_marlin_gemm",
    "_C::marlin_gemm",
    "sgl_kernel::gptq_gemm",
    "sgl_kernel::gptq_marlin_gemm",
)
def packed_product(call: RecipeCall) -> str:
    """Rows of a group are neighbours; what the blocks of a grid lock each other with is zero."""
    call.require(*_GROUPS)
    fill_quantized(call)
    for locks in call.present("workspace"):
        locks.fill_integers(0, 1)
    shuffled = any(call.value(name) for name in call.named(*_SHUFFLED))
    told = [_write_orders(call)]
    for groups in call.present(*call.named(*_GROUPS)):
        told.append(_write_order(groups) if shuffled else _write_groups(call, groups))
    return "; ".join(filter(None, told)) or "rows stay in their order, groups are neighbours"


def _write_orders(call: RecipeCall) -> str:
    return "; ".join(filter(None, map(_write_order, call.present(*call.named(*_ORDERS)))))


def _write_order(order: InputTensor) -> str:
    if not order.numel:
        return ""
    order.write_distinct(order.numel)
    return f"{order.numel} rows permuted"


def _write_groups(call: RecipeCall, groups: InputTensor) -> str:
    rows = groups.numel
    if not rows:
        return ""
    count = call.tensor(call.require(*_SCALES)).dims[0]
    groups.write_list([row * count // rows for row in range(rows)])
    return f"{rows} rows in {count} groups"
