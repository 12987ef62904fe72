"""Sequences of unequal length: batch sizes, lengths and offsets that add up to the rows."""

from __future__ import annotations

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []


@recipe("aten::_pack_padded_sequence", cpu=("lengths",))
def pack_padded_sequence(call: RecipeCall) -> str:
    """Lengths descend from the padded length to half of it."""
    dims, lengths = call.tensor("input").dims, call.tensor("lengths")
    longest = dims[1] if call.value("batch_first") else dims[0]
    count = lengths.numel
    lengths.write_list([longest - i * (longest // 2) // max(count, 1) for i in range(count)])
    return f"lengths descend from {longest} to half of it"


@recipe("aten::_pad_packed_sequence", cpu=("batch_sizes",))
def pad_packed_sequence(call: RecipeCall) -> str:
    """Batch sizes descend and add up to the packed rows."""
    rows, batch_sizes = call.tensor("data").dims[0], call.tensor("batch_sizes")
    batch_sizes.write_list(split(rows, batch_sizes.numel))
    return f"batch sizes descend and add up to {rows}"


@recipe("aten::_pack_padded_sequence_backward", cpu=("batch_sizes",))
def pack_padded_sequence_backward(call: RecipeCall) -> str:
    """Batch sizes descend and add up to the packed rows."""
    rows, batch_sizes = call.tensor("grad").dims[0], call.tensor("batch_sizes")
    batch_sizes.write_list(split(rows, batch_sizes.numel))
    return f"batch sizes descend and add up to {rows}"


@recipe(
    "aten::lstm",
    "aten::gru",
    "aten::rnn_relu",
    "aten::rnn_tanh",
    cpu=(),
)
def packed_rnn(call: RecipeCall) -> str | None:
    """Batch sizes of packed input descend from the batch of the hidden state."""
    if not call.has_tensor("batch_sizes"):
        return None
    hidden = call.present("hx")[0]
    batch, rows = hidden.dims[1], call.tensor("data").dims[0]
    sizes: list[int] = []
    steps = call.tensor("batch_sizes").numel
    for step in range(steps):
        sizes.append(min(batch, rows - sum(sizes) - (steps - 1 - step)))
    if sum(sizes) != rows or min(sizes, default=1) < 1:
        raise RecipeError(f"{rows} rows in {steps} steps do not fit a batch of {batch}")
    call.tensor("batch_sizes").write_list(sizes)
    return f"batch sizes descend from {batch} and add up to {rows}"


@recipe("aten::segment_reduce", "aten::_segment_reduce_backward")
def segment_reduce(call: RecipeCall) -> str | None:
    """Lengths add up to the rows; offsets are their running sum."""
    axis = call.value("axis")
    rows = call.tensor("data").dims[axis]
    told = []
    for lengths in call.present("lengths"):
        # Segments lie along the last dimension of the lengths; those before it are a batch.
        count = lengths.dims[-1]
        row = torch.tensor(split(rows, count), device=lengths.device)
        lengths.write(row.to(lengths.dtype).expand(lengths.dims))
        told.append(f"{count} segments of equal length")
    for offsets in call.present("offsets"):
        count = offsets.dims[-1] - 1
        row = torch.tensor(starts(split(rows, count)), device=offsets.device)
        offsets.write(row.to(offsets.dtype).expand(offsets.dims))
        told.append(f"{count} segments of equal length")
    return "; ".join(told) or None


@recipe("aten::_jagged_to_padded_dense_forward")
def jagged_to_padded_dense(call: RecipeCall) -> str:
    """Offsets ascend to the rows of the values, level by level."""
    return _jagged_offsets(call, call.tensor("values").dims[0], call.value("max_lengths"))


@recipe("aten::_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(call: RecipeCall) -> str:
    """Offsets ascend to the recorded number of rows; without it, every sequence is full."""
    dims = call.tensor("dense").dims
    levels = call.tensors("offsets")
    longest = list(dims[1 : 1 + len(levels)])
    rows = call.value("total_L")
    if rows is None:
        rows = dims[0]
        for length in longest:
            rows *= length
    return _jagged_offsets(call, rows, longest)


def _jagged_offsets(call: RecipeCall, rows: int, longest: list[int]) -> str:
    """Writes offsets: each level's last entry is the number of sequences of the next one."""
    levels = call.tensors("offsets")
    for level, offsets in enumerate(levels):
        if offsets is None:
            continue
        following = levels[level + 1] if level + 1 < len(levels) else None
        total = rows if following is None else following.numel - 1
        lengths = split(total, offsets.numel - 1)
        if lengths and lengths[0] > longest[level]:
            raise RecipeError(f"{total} rows do not fit sequences of at most {longest[level]}")
        offsets.write_list(starts(lengths))
    return f"offsets ascend to {rows}, lengths equal"


@recipe("aten::_nested_tensor_from_mask", "aten::_nested_tensor_from_mask_left_aligned")
def nested_from_mask(call: RecipeCall) -> str:
    """The mask keeps the beginning of each sequence: all of the first, half of the last."""
    mask = call.tensor("mask")
    batch, longest = mask.dims
    place = torch.arange(longest, device=mask.device)
    rows = torch.arange(batch, device=mask.device)
    kept = longest - rows * (longest // 2) // max(batch, 1)
    mask.write((place < kept[:, None]).to(mask.dtype))
    return "mask keeps all of the first sequence down to half of the last"
