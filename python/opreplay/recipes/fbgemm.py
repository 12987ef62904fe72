"""Ragged features of fbgemm: lengths that add up, permutations, offsets that ascend."""

from __future__ import annotations

from opreplay.recipes.call import InputTensor, RecipeCall
from opreplay.recipes.lengths import split, starts
from opreplay.recipes.registry import recipe

__all__: list[str] = []

_MEAN_LENGTH = 8
"""Values of a feature where nothing in the call says how many there are."""


def _write_lengths(lengths: InputTensor, total: int) -> str:
    lengths.write_list(split(total, lengths.numel))
    return f"{lengths.numel} lengths add up to {total}"


@recipe(
    "fbgemm::asynchronous_complete_cumsum",
    "fbgemm::asynchronous_exclusive_cumsum",
    "fbgemm::asynchronous_inclusive_cumsum",
)
def cumsum(call: RecipeCall) -> str:
    """Lengths are not negative, and their sum fits the dtype."""
    call.tensor("t_in").fill_integers(0, 2 * _MEAN_LENGTH)
    return f"lengths uniform in [0, {2 * _MEAN_LENGTH})"


@recipe("fbgemm::permute_1D_sparse_data", "fbgemm::permute_2D_sparse_data")
def permute_sparse_data(call: RecipeCall) -> str:
    """Lengths add up to the number of values; no feature is taken twice."""
    told = _write_lengths(call.tensor("lengths"), call.tensor("values").numel)
    features = call.tensor("lengths").dims[0]
    permute = call.tensor("permute")
    permute.write_distinct(features)
    return f"{told}, a permutation of {features} features"


@recipe("fbgemm::block_bucketize_sparse_features")
def block_bucketize_sparse_features(call: RecipeCall) -> str:
    """Lengths add up to the number of indices; indices fall into the recorded buckets."""
    told = _write_lengths(call.tensor("lengths"), call.tensor("indices").numel)
    buckets, rows = call.value("my_size"), 1 << 20
    call.tensor("block_sizes").fill_integers(max(1, rows // buckets), max(1, rows // buckets) + 1)
    call.tensor("indices").fill_integers(0, rows)
    return f"{told}, indices uniform in [0, {rows})"


@recipe("fbgemm::bounds_check_indices")
def bounds_check_indices(call: RecipeCall) -> str:
    """Offsets ascend to the number of indices, and every index is within bounds."""
    rows = call.tensor("rows_per_table")
    rows.fill_integers(1 << 20, (1 << 20) + 1)
    indices, offsets = call.tensor("indices"), call.tensor("offsets")
    indices.fill_integers(0, 1 << 20)
    offsets.write_list(starts(split(indices.numel, offsets.numel - 1)))
    for tensor in call.present("warning"):
        tensor.fill_integers(0, 1)
    return f"indices uniform in [0, {1 << 20}), {offsets.numel - 1} bags of equal size"
