"""Indices for operators that look rows, elements or positions up: all within bounds."""

from __future__ import annotations

import math

import torch

from opreplay.recipes.call import InputTensor, RecipeCall, RecipeError
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _size(dims: tuple[int, ...], dim: int) -> int:
    """Returns a size; a tensor without dimensions counts as one of one element."""
    return dims[dim] if dims else 1


def _uniform(tensor: InputTensor, count: int, name: str) -> str:
    tensor.fill_integers(0, count)
    return f"{name} uniform in [0, {count})"


@recipe("aten::embedding")
def embedding(call: RecipeCall) -> str:
    """Rows of the table, uniform."""
    return _uniform(call.tensor("indices"), _size(call.tensor("weight").dims, 0), "indices")


@recipe("aten::embedding_renorm_")
def embedding_renorm(call: RecipeCall) -> str:
    """Rows of the table, uniform."""
    return _uniform(call.tensor("indices"), _size(call.tensor("self").dims, 0), "indices")


@recipe(
    "aten::embedding_backward", "aten::embedding_dense_backward", "aten::embedding_sparse_backward"
)
def embedding_backward(call: RecipeCall) -> str:
    """Rows of the table, uniform."""
    return _uniform(call.tensor("indices"), call.value("num_weights"), "indices")


@recipe("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: RecipeCall) -> str:
    """Rows of the table, uniform, in bags of equal size."""
    summary = _uniform(call.tensor("indices"), _size(call.tensor("weight").dims, 0), "indices")
    offsets, indices = call.tensor("offsets"), call.tensor("indices")
    count = offsets.numel
    ends_recorded = call.value("include_last_offset")
    bags = count - 1 if ends_recorded else count
    begin = starts(split(indices.numel, bags))
    offsets.write_list(begin if ends_recorded else begin[:-1])
    return f"{summary}, {bags} bags of equal size"


@recipe(
    "aten::_embedding_bag_backward",
    "aten::_embedding_bag_dense_backward",
    "aten::_embedding_bag_sparse_backward",
    "aten::_embedding_bag_per_sample_weights_backward",
)
def embedding_bag_backward(call: RecipeCall) -> str:
    """Rows of the table, uniform, and the maps of bags of equal size."""
    indices = call.tensor("indices")
    rows = (
        call.value("num_weights")
        if call.has("num_weights")
        else _size(call.tensor("weight").dims, 0)
    )
    summary = _uniform(indices, rows, "indices")
    bags = _size(call.tensor("grad").dims, 0)
    sizes = split(indices.numel, bags)
    offset2bag = call.tensor("offset2bag")
    owner = torch.repeat_interleave(torch.tensor(sizes, device=offset2bag.device))
    offset2bag.write(owner[: offset2bag.numel].to(offset2bag.dtype))
    if call.has_tensor("bag_size"):
        bag_size = call.tensor("bag_size")
        bag_size.write_list(sizes[: bag_size.numel])
    if call.has_tensor("maximum_indices"):
        call.tensor("maximum_indices").fill_integers(0, rows)
    if call.has_tensor("offsets"):
        offsets = call.tensor("offsets")
        offsets.write_list(starts(sizes)[: offsets.numel])
    return f"{summary}, {bags} bags of equal size"


@recipe(
    "aten::index_select",
    "aten::gather",
    "aten::gather_backward",
    "aten::index_add",
    "aten::index_add_",
    "aten::index_fill",
    "aten::index_fill_",
    "aten::index_reduce",
    "aten::index_reduce_",
    "aten::scatter_add",
    "aten::scatter_add_",
    "aten::scatter_reduce",
    "aten::scatter_reduce_",
)
def index_along_dim(call: RecipeCall) -> str:
    """Positions along a dimension, uniform; they may repeat, as sums allow it."""
    return _uniform(
        call.tensor("index"), _size(call.tensor("self").dims, call.value("dim")), "index"
    )


@recipe("aten::index_copy", "aten::index_copy_", "aten::scatter", "aten::scatter_")
def distinct_along_dim(call: RecipeCall) -> str:
    """Positions along a dimension, none twice, because two writes to one place would race."""
    dim = call.value("dim")
    count = _size(call.tensor("self").dims, dim)
    index = call.tensor("index")
    index.write_distinct(count, over=[dim if call.op.startswith("aten::scatter") else 0])
    return f"index distinct in [0, {count})"


@recipe("aten::index_select_backward")
def index_select_backward(call: RecipeCall) -> str:
    """Positions along a dimension, uniform."""
    return _uniform(
        call.tensor("index"), _size(tuple(call.value("self_sizes")), call.value("dim")), "index"
    )


@recipe("aten::value_selecting_reduction_backward")
def value_selecting_reduction_backward(call: RecipeCall) -> str:
    """Positions of the selected values along the reduced dimension, uniform."""
    return _uniform(
        call.tensor("indices"), _size(tuple(call.value("sizes")), call.value("dim")), "indices"
    )


@recipe("aten::cummaxmin_backward")
def cummaxmin_backward(call: RecipeCall) -> str:
    """Positions along the scanned dimension, uniform."""
    return _uniform(
        call.tensor("indices"), _size(call.tensor("input").dims, call.value("dim")), "indices"
    )


@recipe("aten::take_along_dim")
def take_along_dim(call: RecipeCall) -> str:
    """Positions along a dimension, or in the flattened tensor, uniform."""
    dims, dim = call.tensor("self").dims, call.value("dim")
    count = math.prod(dims) if dim is None else _size(dims, dim)
    return _uniform(call.tensor("indices"), count, "indices")


@recipe("aten::take")
def take(call: RecipeCall) -> str:
    """Positions in the flattened tensor, uniform."""
    return _uniform(call.tensor("index"), call.tensor("self").numel, "index")


@recipe("aten::put", "aten::put_")
def put(call: RecipeCall) -> str:
    """Positions in the flattened tensor, none twice."""
    count = call.tensor("self").numel
    call.tensor("index").write_distinct(count)
    return f"index distinct in [0, {count})"


@recipe(
    "aten::index",
    "aten::_unsafe_index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_unsafe_index_put",
    "aten::_index_put_impl_",
)
def index_list(call: RecipeCall) -> str:
    """One tensor of positions for each indexed dimension, uniform; masks hold as many as needed."""
    dims = call.tensor("self").dims
    dim = 0
    told = []
    for tensor in call.tensors("indices"):
        if tensor is None:
            dim += 1
        elif tensor.dtype in (torch.bool, torch.uint8):
            told.append(_mask(call, tensor))
            dim += len(tensor.dims)
        else:
            if dim >= len(dims):
                raise RecipeError(f"more indices than the {len(dims)} dimensions of 'self'")
            told.append(_uniform(tensor, dims[dim], f"indices of dim {dim}"))
            dim += 1
    return "; ".join(told)


def _mask(call: RecipeCall, mask: InputTensor) -> str:
    """Lets as many elements through as there are values to put, half of them where that is open."""
    if mask.true_elements is not None:
        mask.write_true(mask.true_elements)
        return f"mask true for {mask.true_elements} elements"
    if not call.has_tensor("values") or call.tensor("values").numel == 1:
        mask.fill_integers(0, 2)
        return "mask true for half of the elements"
    count = call.tensor("values").dims[0]
    mask.write_true(count)
    return f"mask true for {count} elements"


@recipe("aten::one_hot")
def one_hot(call: RecipeCall) -> str:
    """Classes, uniform."""
    classes = call.value("num_classes")
    return _uniform(call.tensor("self"), classes if classes > 0 else 128, "classes")


@recipe("aten::bincount")
def bincount(call: RecipeCall) -> str:
    """Bins, uniform."""
    return _uniform(call.tensor("self"), max(call.value("minlength"), 1), "bins")
