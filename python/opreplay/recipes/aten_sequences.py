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


@recipe("aten::lstm", "aten::gru", "aten::rnn_relu", "aten::rnn_tanh")
def packed_rnn(call: RecipeCall) -> str | None:
    """Batch sizes of packed input descend from the batch of the hidden state."""
    if not call.has_tensor("batch_sizes"):
        return None
    batch, rows = call.present("hx")[0].dims[1], call.tensor("data").dims[0]
    batch_sizes = call.tensor("batch_sizes")
    steps = batch_sizes.numel
    sizes: list[int] = []
    left = rows
    for later in reversed(range(steps)):
        sizes.append(min(batch, left - later))
        left -= sizes[-1]
    if left or min(sizes, default=1) < 1:
        raise RecipeError(f"{rows} rows in {steps} steps do not fit a batch of {batch}")
    batch_sizes.write_list(sizes)
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
