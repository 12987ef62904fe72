"""Coordinates of sparse tensors: within their size, in the order that the format asks for."""

from __future__ import annotations

import math

import torch

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe(
    "aten::sparse_coo_tensor",
    "aten::_sparse_coo_tensor_unsafe",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_validate_sparse_coo_tensor_args",
)
def coordinates(call: RecipeCall) -> str | None:
    """Coordinates are distinct and lie within the size; without a recorded size, below 128."""
    if not call.has_tensor("indices"):
        return None
    indices = call.tensor("indices")
    dims, count = indices.dims
    size = list(call.value("size"))[:dims] if call.has("size") else [128] * dims
    flat = (
        indices.random_integers([min(count, 1)], 0, max(math.prod(size), 1))
        + torch.arange(count, device=indices.device)
    ) % max(math.prod(size), 1)
    rows = []
    for extent in reversed(size):
        rows.append(flat % max(extent, 1))
        flat = flat // max(extent, 1)
    indices.write(torch.stack(rows[::-1]).to(indices.dtype))
    return f"coordinates distinct within {size}"


@recipe("aten::_convert_indices_from_coo_to_csr")
def coo_to_csr(call: RecipeCall) -> str:
    """Row numbers ascend and use every row."""
    rows, size = call.tensor("self"), call.value("size")
    place = torch.arange(rows.numel, device=rows.device)
    rows.write((place * size // max(rows.numel, 1)).view(rows.dims).to(rows.dtype))
    return f"rows ascend in [0, {size})"


@recipe("aten::_convert_indices_from_csr_to_coo")
def csr_to_coo(call: RecipeCall) -> str:
    """Row bounds ascend to the number of elements."""
    bounds, columns = call.tensor("crow_indices"), call.tensor("col_indices")
    count = columns.dims[-1]
    row = torch.tensor(starts(split(count, bounds.dims[-1] - 1)), device=bounds.device)
    bounds.write(row.to(bounds.dtype).expand(bounds.dims))
    return f"row bounds ascend to {count}"
