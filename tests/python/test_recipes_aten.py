"""Each case makes inputs, checks them by a rule of its own, and runs the operator of torch."""

import pytest
import torch
from made_calls import call, f32, i32, i64, made, make, mask, run, tensor

from opreplay.recipes import find_recipe

F16, F8 = torch.bfloat16, torch.float8_e4m3fn


def within(value, low, high):
    return value.numel() == 0 or bool((value >= low).all() and (value < high).all())


def spread(value, count):
    """All of `count` positions are used, as thousands of uniform draws do."""
    return within(value, 0, count) and value.unique().numel() == count


def distinct(value):
    return value.unique().numel() == value.numel()


def ascends(value, *, strictly=False):
    steps = value.diff()
    return bool((steps > 0).all() if strictly else (steps >= 0).all())


def positive_definite(value):
    return bool((torch.linalg.eigvalsh(value) > 0).all())


def invertible(value):
    return bool((torch.linalg.cond(value) < 100).all())


INDEX_CASES = [
    (call("aten::embedding", weight=f32(9, 4), indices=i64(8, 100)), "indices", 9),
    (call("aten::embedding", weight=f32(9, 4), indices=i32(8, 100)), "indices", 9),
    (
        call("aten::embedding_dense_backward", grad_output=f32(300, 4), indices=i64(300),
             num_weights=11, padding_idx=-1, scale_grad_by_freq=False),
        "indices", 11,
    ),
    (call("aten::embedding_renorm_", self=f32(9, 4), indices=i64(99), max_norm=1.0, norm_type=2.0),
     "indices", 9),
    (call("aten::index_select", self=f32(5, 7), dim=-1, index=i64(200)), "index", 7),
    (call("aten::index_select", self=f32(), dim=0, index=i64(1)), "index", 1),
    (
        call("aten::index_select_backward", grad=f32(5, 90), self_sizes=(5, 7), dim=1,
             index=i64(90)), "index", 7,
    ),
    (call("aten::gather", self=f32(5, 7), dim=1, index=i64(5, 90)), "index", 7),
    (call("aten::gather_backward", grad=f32(90, 7), self=f32(5, 7), dim=0, index=i64(90, 7),
          sparse_grad=False), "index", 5),
    (call("aten::take_along_dim", self=f32(5, 7), indices=i64(5, 90), dim=1), "indices", 7),
    (call("aten::take_along_dim", self=f32(5, 7), indices=i64(900)), "indices", 35),
    (call("aten::take", self=f32(5, 7), index=i64(900)), "index", 35),
    (call("aten::scatter_add", self=f32(5, 7), dim=1, index=i64(5, 90), src=f32(5, 90)),
     "index", 7),
    (call("aten::scatter_reduce", "two", self=f32(5, 7), dim=0, index=i64(90, 7), src=f32(90, 7),
          reduce="sum"), "index", 5),
    (call("aten::index_add", self=f32(5, 7), dim=0, index=i64(60), source=f32(60, 7)), "index", 5),
    (call("aten::index_add_", self=f32(5, 7), dim=0, index=i32(60), source=f32(60, 7)),
     "index", 5),
    (call("aten::index_fill", "int_Scalar", self=f32(5, 7), dim=0, index=i64(60), value=1),
     "index", 5),
    (call("aten::index_reduce", self=f32(5, 7), dim=0, index=i64(60), source=f32(60, 7),
          reduce="mean"), "index", 5),
    (call("aten::value_selecting_reduction_backward", grad=f32(5), dim=1, indices=i64(5),
          sizes=(5, 2), keepdim=False), "indices", 2),
    (call("aten::cummaxmin_backward", grad=f32(5, 60), input=f32(5, 60), indices=i64(5, 60),
          dim=0), "indices", 5),
    (call("aten::one_hot", self=i64(400), num_classes=6), "self", 6),
    (call("aten::bincount", self=i64(400), minlength=8), "self", 8),
    (call("aten::nll_loss_forward", self=f32(300, 10), target=i64(300), weight=None, reduction=1,
          ignore_index=-100), "target", 10),
    (call("aten::nll_loss_nd", self=f32(300, 10), target=i64(300)), "target", 10),
    (call("aten::nll_loss2d_forward", self=f32(3, 5, 8, 8), target=i64(3, 8, 8), weight=f32(5),
          reduction=1, ignore_index=-100), "target", 5),
    (call("aten::cross_entropy_loss", self=f32(300, 10), target=i64(300)), "target", 10),
    (call("aten::multi_margin_loss", self=f32(300, 10), target=i64(300)), "target", 10),
    (call("aten::fractional_max_pool2d_backward", grad_output=f32(9, 3, 3), self=f32(9, 4, 4),
          kernel_size=(2, 2), output_size=(3, 3), indices=i64(9, 3, 3)), "indices", 16),
    (call("aten::narrow", "Tensor", self=f32(9, 7), dim=0, start=i64(), length=9), "start", 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("resolved", "name", "count"), INDEX_CASES, ids=lambda v: getattr(v, "op", None)
)
def test_indices_reach_every_position_and_none_outside(resolved, name, count):
    inputs = made(resolved)
    index = getattr(inputs, name)
    assert within(index, 0, count)
    if index.numel() >= 20 * count:
        assert spread(index, count)
    assert str(count) in inputs._inputs.recipe
    run(resolved, inputs)


@pytest.mark.parametrize(
    ("resolved", "name", "count", "dim"),
    [
        (call("aten::scatter", "src", self=f32(5, 50), dim=1, index=i64(5, 50), src=f32(5, 50)),
         "index", 50, 1),
        (call("aten::scatter_", "value", self=f32(3, 9, 4), dim=-2, index=i64(3, 6, 4), value=1),
         "index", 9, 1),
        (call("aten::index_copy", self=f32(9, 4), dim=0, index=i64(7), source=f32(7, 4)),
         "index", 9, 0),
        (call("aten::index_copy_", self=f32(4, 9), dim=1, index=i64(9), source=f32(4, 9)),
         "index", 9, 0),
        (call("aten::put_", self=f32(9, 4), index=i64(36), source=f32(36)), "index", 36, 0),
        (call("aten::multilabel_margin_loss", self=f32(8, 6), target=i64(8, 6)), "target", 6, 1),
    ],
    ids=lambda v: getattr(v, "op", None),
)  # fmt: skip
def test_writes_go_to_distinct_places(resolved, name, count, dim):
    inputs = made(resolved)
    index = getattr(inputs, name)
    assert within(index, 0, count)
    assert all(distinct(row) for row in index.movedim(dim, -1).reshape(-1, index.size(dim)))
    run(resolved, inputs)


def test_index_lists_hold_positions_of_each_indexed_dimension():
    resolved = call(
        "aten::index_put_", self=f32(30, 3, 50), indices=(i64(400), None, i64(400)),
        values=f32(400, 3),
    )  # fmt: skip
    inputs = made(resolved)
    assert spread(inputs.indices[0], 30)
    assert within(inputs.indices[2], 0, 50)
    assert inputs._inputs.recipe == (
        "indices of dim 0 uniform in [0, 30); indices of dim 2 uniform in [0, 50)"
    )
    run(resolved, inputs)


def test_a_mask_among_indices_lets_as_many_through_as_there_are_values():
    resolved = call("aten::index_put_", self=f32(6, 7, 2), indices=(mask(6, 7),), values=f32(10, 2))
    inputs = made(resolved)
    assert inputs.indices[0].sum() == 10
    run(resolved, inputs)
    free = made(call("aten::index", "Tensor", self=f32(60, 70), indices=(mask(60, 70),)))
    assert 0.4 < free.indices[0].float().mean() < 0.6


def test_more_indices_than_dimensions_fail_the_recipe():
    skipped = make(call("aten::index", "Tensor", self=f32(3), indices=(i64(3), i64(3))))
    assert skipped.reason == "recipe_failed"
    assert "more indices than the 1 dimensions of 'self'" in skipped.detail


def test_a_lookup_in_an_empty_table_fails_the_recipe_and_an_empty_lookup_does_not():
    skipped = make(call("aten::embedding", weight=f32(0, 4), indices=i64(3)))
    assert skipped.reason == "recipe_failed"
    assert "no torch.int64 value lies in [0, 0)" in skipped.detail
    resolved = call("aten::embedding", weight=f32(0, 4), indices=i64(0))
    run(resolved, made(resolved))


@pytest.mark.parametrize("ends_recorded", [False, True])
@pytest.mark.parametrize("op", ["embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"])
def test_bags_share_the_indices_evenly(op, ends_recorded):
    resolved = call(f"aten::{op}", weight=f32(20, 8), indices=i64(400), offsets=i64(100),
                    include_last_offset=ends_recorded)  # fmt: skip
    inputs = made(resolved)
    assert spread(inputs.indices, 20)
    assert inputs.offsets[0] == 0
    assert ascends(inputs.offsets)
    bags = 99 if ends_recorded else 100
    assert inputs.offsets[bags - 1] <= 400 - 400 // bags
    if ends_recorded:
        assert inputs.offsets[-1] == 400
    run(resolved, inputs)


def test_the_maps_of_bags_agree_with_each_other():
    resolved = call(
        "aten::_embedding_bag_dense_backward", grad=f32(10, 8), indices=i64(45), offset2bag=i64(45),
        bag_size=i64(10), maximum_indices=i64(10), num_weights=20, scale_grad_by_freq=False,
        mode=0, per_sample_weights=None,
    )  # fmt: skip
    inputs = made(resolved)
    assert ascends(inputs.offset2bag)
    assert torch.bincount(inputs.offset2bag, minlength=10).tolist() == inputs.bag_size.tolist()
    assert within(inputs.maximum_indices, 0, 20)
    run(resolved, inputs)
    resolved = call(
        "aten::_embedding_bag_per_sample_weights_backward", grad=f32(10, 8), weight=f32(20, 8),
        indices=i64(45), offsets=i64(10), offset2bag=i64(45), mode=0,
    )  # fmt: skip
    inputs = made(resolved)
    assert within(inputs.indices, 0, 20)
    assert inputs.offsets.tolist() == [0, 5, 10, 15, 20, 25, 29, 33, 37, 41]
    run(resolved, inputs)


def test_boundaries_ascend():
    resolved = call("aten::bucketize", "Tensor", self=f32(100), boundaries=f32(40))
    inputs = made(resolved)
    assert ascends(inputs.boundaries, strictly=True)
    assert run(resolved, inputs).unique().numel() > 20


def test_sorted_sequences_ascend_in_every_row_and_sorters_are_permutations():
    resolved = call("aten::searchsorted", "Tensor", sorted_sequence=f32(6, 40), self=f32(6, 9),
                    sorter=i64(6, 40))  # fmt: skip
    inputs = made(resolved)
    assert all(ascends(row, strictly=True) for row in inputs.sorted_sequence)
    assert all(sorted(row.tolist()) == list(range(40)) for row in inputs.sorter)
    run(resolved, inputs)


def test_edges_of_bins_ascend():
    resolved = call("aten::histogram", "bins_tensor", self=f32(50), bins=f32(6))
    inputs = made(resolved)
    assert ascends(inputs.bins)
    run(resolved, inputs)
    resolved = call("aten::histogram", "bin_ct", self=f32(50), bins=6)
    assert made(resolved)._inputs.recipe is None


@pytest.mark.parametrize(
    ("resolved", "total"),
    [
        (call("aten::repeat_interleave", "Tensor", repeats=i64(7), output_size=40), 40),
        (call("aten::repeat_interleave", "self_Tensor", self=f32(7, 2), repeats=i64(7), dim=0,
              output_size=40), 40),
        (call("aten::repeat_interleave", "self_Tensor", self=f32(7, 2), repeats=i64(1), dim=0,
              output_size=21), 3),
        (call("aten::repeat_interleave", "self_Tensor", self=f32(7, 2), repeats=i64(1),
              output_size=28), 2),
    ],
)  # fmt: skip
def test_repeats_add_up_to_the_recorded_output(resolved, total):
    inputs = made(resolved)
    assert inputs.repeats.sum() == total
    assert within(inputs.repeats, 0, total + 1)
    run(resolved, inputs)


def test_repeats_without_a_recorded_output_are_small():
    resolved = call("aten::repeat_interleave", "Tensor", repeats=i64(700))
    inputs = made(resolved)
    assert spread(inputs.repeats, 4)
    run(resolved, inputs)
    assert make(call("aten::repeat_interleave", "self_int", self=f32(3), repeats=2)).recipe is None


def test_split_points_ascend_within_the_dimension():
    op, name = "aten::tensor_split", "tensor_indices_or_sections"
    resolved = call(op, "tensor_indices_or_sections", self=f32(9, 2), **{name: i64(3)})
    inputs = made(resolved)
    assert inputs.tensor_indices_or_sections.tolist() == [3, 5, 7]
    assert len(run(resolved, inputs)) == 4
    resolved = call(op, "tensor_indices_or_sections", self=f32(9, 2), **{name: i64()})
    assert len(run(resolved, made(resolved))) == 2
    assert make(call(op, "sections", self=f32(9), sections=3)).recipe is None


def test_a_start_that_is_a_number_is_left_as_recorded():
    assert make(call("aten::narrow", self=f32(9), dim=0, start=3, length=2)).recipe is None


def test_shifts_are_shorter_than_a_byte():
    resolved = call("aten::bitwise_left_shift", "Tensor", self=i64(400), other=i64(400))
    inputs = made(resolved)
    assert spread(inputs.other, 8)
    run(resolved, inputs)
    scalar = call("aten::__lshift__", "Scalar", self=i64(4), other=3)
    assert make(scalar).recipe is None


def test_asserted_conditions_hold():
    for op, overload in (("_assert_async", ""), ("_assert_async", "msg")):
        values = {"assert_msg": "no"} if overload else {}
        resolved = call(f"aten::{op}", overload, self=mask(), **values)
        run(resolved, made(resolved))


@pytest.mark.parametrize(
    ("resolved", "count"),
    [
        (call("aten::masked_scatter", self=f32(10, 8), mask=mask(10, 8), source=f32(80)), 40),
        (call("aten::masked_scatter", self=f32(10, 8), mask=mask(10, 8), source=f32(7)), 7),
        (call("aten::masked_scatter_", self=f32(10, 8), mask=mask(8), source=f32(25)), 2),
        (call("aten::masked_select_backward", grad=f32(13), input=f32(10, 8), mask=mask(10, 8)),
         13),
        (call("aten::masked_select_backward", grad=f32(490), input=f32(10, 1, 10),
              mask=mask(10, 10)), 49),
        (call("aten::masked_scatter_backward", grad_output=f32(10, 8), mask=mask(10, 8),
              sizes=(33,)), 33),
    ],
)  # fmt: skip
def test_masks_let_through_what_there_is_room_for(resolved, count):
    inputs = made(resolved)
    assert inputs.mask.sum() == count
    run(resolved, inputs)


@pytest.mark.parametrize(
    ("resolved", "names", "low", "high"),
    [
        (call("aten::log", self=f32(999)), ["self"], 0.5, 1.5),
        (call("aten::log", self=tensor(F16, 999)), ["self"], 0.5, 1.5),
        (call("aten::sqrt_", self=f32(999)), ["self"], 0.5, 1.5),
        (call("aten::rsqrt", self=f32(9, 9, strides=(0, 1))), ["self"], 0.5, 1.5),
        (call("aten::pow", "Tensor_Tensor", self=f32(99), exponent=f32(99)), ["self", "exponent"],
         0.5, 1.5),
        (call("aten::pow", "Tensor_Scalar", self=f32(99), exponent=0.5), ["self"], 0.5, 1.5),
        (call("aten::xlogy", "Tensor", self=f32(99), other=f32(99)), ["self", "other"], 0.5, 1.5),
        (call("aten::multinomial", self=f32(4, 50), num_samples=50), ["self"], 0.5, 1.5),
        (call("aten::poisson", self=f32(99)), ["self"], 0.5, 1.5),
        (call("aten::bernoulli", self=f32(999)), ["self"], 0, 0.9999),
        (call("aten::bernoulli_", "Tensor", self=f32(999), p=f32(999)), ["p"], 0, 0.9999),
        (call("aten::binomial", count=f32(99), prob=f32(99)), ["prob"], 0, 0.9999),
        (call("aten::binary_cross_entropy", self=f32(99), target=f32(99)), ["self", "target"],
         0, 0.9999),
        (call("aten::quantile", self=f32(99), q=f32(9)), ["q"], 0, 0.9999),
        (call("aten::fractional_max_pool2d", self=f32(2, 3, 8, 8), kernel_size=(2, 2),
              output_size=(4, 4), random_samples=f32(2, 3, 2)), ["random_samples"], 0, 0.9999),
        (call("aten::normal", "Tensor_Tensor", mean=f32(99), std=f32(99)), ["std"], 0.5, 1.5),
        (call("aten::cov", self=f32(3, 9), aweights=f32(9)), ["aweights"], 0.5, 1.5),
        (call("aten::native_batch_norm", input=f32(2, 8, 4), weight=f32(8), bias=f32(8),
              running_mean=f32(8), running_var=f32(8), training=False, momentum=0.1, eps=1e-5),
         ["running_var"], 0.5, 1.5),
        (call("aten::native_layer_norm_backward", grad_out=f32(2, 8), input=f32(2, 8),
              normalized_shape=(8,), mean=f32(2, 1), rstd=f32(2, 1), weight=f32(8), bias=f32(8),
              output_mask=(True, True, True)), ["rstd"], 0.5, 1.5),
        (call("aten::quantize_per_tensor", "tensor_qparams", self=f32(99), scale=f32(),
              zero_point=i64(), dtype=torch.quint8), ["scale"], 0.5, 1.5),
        (call("aten::_foreach_sqrt", self=(f32(99), f32(50))), ["self"], 0.5, 1.5),
    ],
    ids=lambda v: getattr(v, "op", None),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_floats_lie_in_the_domain_of_the_operator(resolved, names, low, high):
    inputs = made(resolved)
    for name in names:
        value = getattr(inputs, name)
        for each in value if isinstance(value, list) else [value]:
            assert low <= each.min()
            assert each.max() <= high
        assert name in inputs._inputs.recipe
    result = run(resolved, inputs)
    for each in result if isinstance(result, list | tuple) else [result]:
        assert each is None or each.is_quantized or torch.isfinite(each).all()


def test_integers_stay_integers_where_floats_have_a_domain():
    resolved = call("aten::log", self=i64(99))
    inputs = made(resolved)
    assert inputs.self.min() >= 1
    assert inputs._inputs.recipe is None
    run(resolved, inputs)
    assert make(call("aten::normal", "Tensor_float", mean=f32(9), std=2.0)).recipe is None


def test_istft_gets_a_window_without_zeros():
    resolved = call("aten::istft", self=tensor(torch.complex64, 9, 6), n_fft=16, window=f32(16))
    inputs = made(resolved)
    assert inputs.window.min() >= 0.5
    run(resolved, inputs)


@pytest.mark.parametrize(
    ("resolved", "name"),
    [
        (call("aten::linalg_cholesky_ex", self=f32(3, 30, 30)), "self"),
        (call("aten::linalg_cholesky", self=tensor(torch.complex64, 8, 8)), "self"),
        (call("aten::cholesky_inverse", self=f32(9, 9)), "self"),
        (call("aten::cholesky_solve", self=f32(9, 2), input2=f32(9, 9)), "input2"),
        (call("aten::linalg_inv_ex", A=f32(2, 9, 9)), "A"),
        (call("aten::_linalg_solve_ex", A=f32(9, 9), B=f32(9, 2)), "A"),
        (call("aten::linalg_solve_triangular", self=f32(9, 9), B=f32(9, 2), upper=True), "self"),
        (call("aten::triangular_solve", self=f32(9, 2), A=f32(9, 9)), "A"),
        (call("aten::linalg_ldl_factor_ex", self=f32(9, 9)), "self"),
        (call("aten::inverse", self=f32(4, 5, 5, strides=(0, 5, 1))), "self"),
        (call("aten::linalg_lu_solve", LU=f32(9, 9), pivots=i32(9), B=f32(9, 2)), "LU"),
        (call("aten::linalg_ldl_solve", LD=f32(9, 9), pivots=i32(9), B=f32(9, 2)), "LD"),
        (call("aten::lu_unpack", LU_data=f32(9, 9), LU_pivots=i32(9)), "LU_data"),
    ],
    ids=lambda v: getattr(v, "op", None),
)
@pytest.mark.filterwarnings("ignore:.*torch.(triangular_solve|cholesky) is deprecated")
def test_matrices_are_positive_definite_and_well_conditioned(resolved, name):
    inputs = made(resolved)
    matrix = getattr(inputs, name)
    torch.testing.assert_close(matrix, matrix.mH)
    assert positive_definite(matrix)
    assert invertible(matrix)
    for pivots in (getattr(inputs, n, None) for n in ("pivots", "LU_pivots")):
        assert pivots is None or pivots.tolist() == list(range(1, 10))
    result = run(resolved, inputs)
    for each in result if isinstance(result, list | tuple) else [result]:
        assert torch.isfinite(each).all()


def test_a_matrix_that_is_not_square_stays_random():
    resolved = call("aten::linalg_lu_factor_ex", A=f32(9, 5))
    inputs = made(resolved)
    assert inputs.A.abs().max() < 1
    run(resolved, inputs)


def test_a_tensor_is_inverted_as_a_matrix():
    resolved = call("aten::linalg_tensorinv", self=f32(4, 6, 8, 3), ind=2)
    inputs = made(resolved)
    assert invertible(inputs.self.reshape(24, 24))
    run(resolved, inputs)


def test_a_checked_factorization_went_well():
    resolved = call(
        "aten::_linalg_check_errors", info=i32(3), api_name="linalg.cholesky", is_matrix=False
    )
    inputs = made(resolved)
    assert inputs.info.tolist() == [0, 0, 0]
    run(resolved, inputs)


@pytest.mark.parametrize(
    ("spatial", "resolved"),
    [
        (2, call("aten::max_pool2d_with_indices_backward", grad_output=f32(2, 3, 4, 4),
                 self=f32(2, 3, 8, 8), kernel_size=(3, 3), stride=(2, 2), padding=(1, 1),
                 dilation=(1, 1), ceil_mode=False, indices=i64(2, 3, 4, 4))),
        (3, call("aten::max_pool3d_with_indices_backward", grad_output=f32(2, 4, 4, 4),
                 self=f32(2, 8, 8, 8), kernel_size=(2, 2, 2), stride=(), padding=(0, 0, 0),
                 dilation=(1, 1, 1), ceil_mode=False, indices=i64(2, 4, 4, 4))),
        (2, call("aten::adaptive_max_pool2d_backward", grad_output=f32(2, 3, 5, 5),
                 self=f32(2, 3, 8, 8), indices=i64(2, 3, 5, 5))),
        (3, call("aten::adaptive_max_pool3d_backward", grad_output=f32(2, 3, 5, 5, 5),
                 self=f32(2, 3, 8, 8, 8), indices=i64(2, 3, 5, 5, 5))),
    ],
    ids=lambda v: getattr(v, "op", None),
)  # fmt: skip
def test_pooled_positions_are_those_of_the_maxima(spatial, resolved):
    inputs = made(resolved)
    planes = inputs.self.flatten(-spatial)
    chosen = planes.gather(-1, inputs.indices.flatten(-spatial))
    # The greatest values of their windows lie above the mean of their plane.
    assert (chosen > planes.mean(-1, keepdim=True)).float().mean() > 0.9
    assert within(inputs.indices, 0, 8**spatial)
    run(resolved, inputs)


@pytest.mark.parametrize(
    "resolved",
    [
        call("aten::max_unpool2d", self=f32(2, 3, 4, 4), indices=i64(2, 3, 4, 4),
             output_size=(8, 8)),
        call("aten::max_unpool3d", self=f32(2, 3, 2, 4, 4), indices=i64(2, 3, 2, 4, 4),
             output_size=(4, 4, 4), stride=(2, 1, 1), padding=(0, 0, 0)),
    ],
    ids=lambda v: v.op,
)  # fmt: skip
def test_unpooled_positions_are_distinct_in_each_plane(resolved):
    inputs = made(resolved)
    planes = inputs.indices.flatten(0, 1).flatten(1)
    assert within(planes, 0, 64)
    assert all(distinct(plane) for plane in planes)
    run(resolved, inputs)


def test_the_total_weight_of_a_loss_is_the_number_of_targets():
    resolved = call("aten::nll_loss_backward", grad_output=f32(), self=f32(30, 10), target=i64(30),
                    weight=None, reduction=1, ignore_index=-100, total_weight=f32())  # fmt: skip
    inputs = made(resolved)
    assert inputs.total_weight == 30
    run(resolved, inputs)


def test_targets_may_be_probabilities():
    resolved = call("aten::cross_entropy_loss", self=f32(30, 10), target=f32(30, 10))
    inputs = made(resolved)
    assert 0 <= inputs.target.min() <= inputs.target.max() <= 1
    run(resolved, inputs)


@pytest.mark.parametrize("targets", [i64(4, 6), i64(22)], ids=["padded", "joined"])
def test_ctc_targets_avoid_the_blank_and_lengths_fit(targets):
    resolved = call("aten::_ctc_loss", "Tensor", log_probs=f32(20, 4, 9), targets=targets,
                    input_lengths=i64(4), target_lengths=i64(4))  # fmt: skip
    inputs = made(resolved)
    assert within(inputs.targets, 1, 9)
    assert inputs.input_lengths.tolist() == [20] * 4
    assert inputs.target_lengths.tolist() == ([6] * 4 if len(targets.dims) == 2 else [6, 6, 5, 5])
    run(resolved, inputs)
    last = made(call("aten::_ctc_loss", log_probs=f32(20, 4, 9), targets=targets, blank=8,
                     input_lengths=(20,) * 4, target_lengths=(5,) * 4))  # fmt: skip
    assert within(last.targets, 0, 8)


def test_packed_lengths_descend():
    resolved = call("aten::_pack_padded_sequence", input=f32(12, 5, 3), lengths=i64(5),
                    batch_first=False)  # fmt: skip
    inputs = made(resolved)
    assert inputs.lengths[0] == 12
    assert ascends(inputs.lengths.flip(0))
    assert inputs.lengths.min() >= 6
    data, batch_sizes = run(resolved, inputs)
    assert len(data) == batch_sizes.sum() == inputs.lengths.sum()


@pytest.mark.parametrize(
    "resolved",
    [
        call("aten::_pad_packed_sequence", data=f32(30, 3), batch_sizes=i64(8), batch_first=True,
             padding_value=0.0, total_length=-1),
        call("aten::_pack_padded_sequence_backward", grad=f32(30, 3), input_size=(8, 4, 3),
             batch_sizes=i64(8), batch_first=False),
        call("aten::gru", "data", data=f32(30, 3), batch_sizes=i64(8), hx=f32(1, 5, 4),
             params=(f32(12, 3), f32(12, 4)), has_biases=False, num_layers=1, dropout=0.0,
             train=False, bidirectional=False),
        call("aten::lstm", "data", data=f32(30, 3), batch_sizes=i64(8),
             hx=(f32(1, 5, 4), f32(1, 5, 4)), params=(f32(16, 3), f32(16, 4)), has_biases=False,
             num_layers=1, dropout=0.0, train=False, bidirectional=False),
    ],
    ids=lambda v: v.op,
)  # fmt: skip
def test_batch_sizes_descend_and_add_up_to_the_rows(resolved):
    inputs = made(resolved)
    assert inputs.batch_sizes.sum() == 30
    assert inputs.batch_sizes.min() >= 1
    assert ascends(inputs.batch_sizes.flip(0))
    run(resolved, inputs)


def test_rows_that_fit_no_batch_fail_the_recipe():
    values = {"params": (f32(12, 3), f32(12, 4)), "has_biases": False, "num_layers": 1,
              "dropout": 0.0, "train": False, "bidirectional": False}  # fmt: skip
    resolved = call(
        "aten::gru", "data", data=f32(90, 3), batch_sizes=i64(8), hx=f32(1, 5, 4), **values
    )
    assert "90 rows in 8 steps do not fit a batch of 5" in make(resolved).detail
    padded = call("aten::gru", "input", input=f32(7, 5, 3), hx=f32(1, 5, 4), batch_first=False,
                  **values)  # fmt: skip
    assert made(padded)._inputs.recipe is None


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [("lengths", i64(4), [3, 3, 2, 2]), ("offsets", i64(5), [0, 3, 6, 8, 10])],
)
def test_segments_add_up_to_the_rows(name, spec, expected):
    resolved = call("aten::segment_reduce", data=f32(10, 2), reduce="sum", **{name: spec})
    inputs = made(resolved)
    assert getattr(inputs, name).tolist() == expected
    run(resolved, inputs)


def test_jagged_offsets_ascend_to_the_rows():
    resolved = call("aten::_jagged_to_padded_dense_forward", values=f32(10, 2), offsets=(i64(5),),
                    max_lengths=(4,))  # fmt: skip
    assert made(resolved).offsets[0].tolist() == [0, 3, 6, 8, 10]
    full = call("aten::_padded_dense_to_jagged_forward", dense=f32(4, 3, 2), offsets=(i64(5),))
    assert made(full).offsets[0].tolist() == [0, 3, 6, 9, 12]
    ragged = call("aten::_padded_dense_to_jagged_forward", dense=f32(4, 3, 2), offsets=(i64(5),),
                  total_L=9)  # fmt: skip
    assert made(ragged).offsets[0].tolist() == [0, 3, 5, 7, 9]
    short = call("aten::_jagged_to_padded_dense_forward", values=f32(10, 2), offsets=(i64(5),),
                 max_lengths=(2,))  # fmt: skip
    assert "10 rows do not fit 4 sequences of at most 2" in make(short).detail


def test_masks_of_nested_tensors_are_left_aligned():
    resolved = call("aten::_nested_tensor_from_mask", t=f32(4, 8, 3), mask=mask(4, 8))
    inputs = made(resolved)
    assert inputs.mask.sum(1).tolist() == [8, 7, 6, 5]
    assert (inputs.mask[:, :-1] >= inputs.mask[:, 1:]).all()


def test_sequences_of_flash_attention_fill_the_rows_and_the_longest_is_as_recorded():
    resolved = call(
        "aten::_flash_attention_forward", query=tensor(F16, 20, 4, 8), key=tensor(F16, 40, 4, 8),
        value=tensor(F16, 40, 4, 8), cum_seq_q=i32(5), cum_seq_k=i32(5), max_q=8, max_k=10,
        dropout_p=0.0, is_causal=True, return_debug_mask=False, seqused_k=i32(4),
    )  # fmt: skip
    inputs = made(resolved)
    assert inputs.cum_seq_q.tolist() == [0, 8, 12, 16, 20]
    assert inputs.cum_seq_k.tolist() == [0, 10, 20, 30, 40]
    assert inputs.seqused_k.tolist() == [10] * 4


def test_paged_keys_of_flash_attention_lie_in_blocks_of_their_own():
    cache = tensor(F16, 40, 16, 4, 8)
    resolved = call(
        "aten::_flash_attention_forward", query=tensor(F16, 20, 4, 8), key=cache, value=cache,
        cum_seq_q=i32(5), cum_seq_k=i32(5), max_q=8, max_k=45, dropout_p=0.0, is_causal=True,
        return_debug_mask=False, block_table=i32(4, 3), seqused_k=i32(4),
    )  # fmt: skip
    inputs = made(resolved)
    assert inputs.cum_seq_q.tolist() == [0, 8, 12, 16, 20]
    assert inputs.seqused_k.max() == 45
    assert inputs.seqused_k.min() >= 8
    used = [b for row, n in zip(inputs.block_table.tolist(), inputs.seqused_k.tolist(), strict=True)
            for b in row[: -(-n // 16)]]  # fmt: skip
    assert len(set(used)) == len(used)
    assert within(inputs.block_table, 0, 40)


def test_dense_attention_has_no_sequence_bounds():
    resolved = call(
        "aten::_flash_attention_forward", query=tensor(F16, 2, 9, 4, 8),
        key=tensor(F16, 2, 9, 4, 8), value=tensor(F16, 2, 9, 4, 8), cum_seq_q=None, cum_seq_k=None,
        max_q=9, max_k=9, dropout_p=0.0, is_causal=True, return_debug_mask=False,
    )  # fmt: skip
    assert make(resolved).recipe is None


def test_the_backward_of_dense_attention_keeps_its_empty_bounds():
    shape = (2, 9, 4, 8)
    tensors = {n: tensor(F16, *shape) for n in ("grad_out", "query", "key", "value", "out")}
    resolved = call(
        "aten::_flash_attention_backward", **tensors, logsumexp=f32(2, 4, 9), cum_seq_q=i32(0),
        cum_seq_k=i32(0), max_q=9, max_k=9, dropout_p=0.0, is_causal=True, rng_state=i64(2),
        unused=i64(0),
    )  # fmt: skip
    inputs = made(resolved)
    assert inputs.cum_seq_q.numel() == 0
    assert inputs.logsumexp.min() >= 0.5


def test_sequences_of_efficient_attention_lie_behind_a_batch_of_one():
    resolved = call(
        "aten::_efficient_attention_forward", query=f32(1, 12, 2, 8), key=f32(1, 12, 2, 8),
        value=f32(1, 12, 2, 8), bias=None, cu_seqlens_q=i32(4), cu_seqlens_k=i32(4),
        max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0, custom_mask_type=0,
    )  # fmt: skip
    assert made(resolved).cu_seqlens_q.tolist() == [0, 4, 8, 12]


def test_masks_of_bools_are_causal():
    resolved = call("aten::scaled_dot_product_attention", query=f32(2, 4, 3, 8),
                    key=f32(2, 4, 5, 8), value=f32(2, 4, 5, 8), attn_mask=mask(3, 5))  # fmt: skip
    inputs = made(resolved)
    assert inputs.attn_mask.tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]
    run(resolved, inputs)


@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        (tensor(F16, 64, 16), tensor(F16, 4, 16, 8), 64),
        (tensor(F16, 16, 64), tensor(F16, 64, 8), 64),
        (tensor(F16, 4, 8, 16), tensor(F16, 16, 64), 64),
        (tensor(F16, 13, 16), tensor(F16, 4, 16, 8), 13),
    ],
)
def test_groups_end_at_the_last_row_and_are_aligned_where_that_fits(first, second, total):
    inputs = made(call("aten::_grouped_mm", self=first, mat2=second, offs=i32(4)))
    assert inputs.offs[-1] == total
    assert ascends(inputs.offs)
    if total == 64:
        assert (inputs.offs % 8 == 0).all()
    dense = call("aten::_grouped_mm", self=tensor(F16, 2, 8, 8), mat2=tensor(F16, 2, 8, 8))
    assert make(dense).recipe is None


def test_scales_of_matrix_products_are_positive():
    resolved = call("aten::_scaled_mm", self=tensor(F8, 16, 32),
                    mat2=tensor(F8, 32, 16, strides=(1, 32)), scale_a=f32(), scale_b=f32(),
                    out_dtype=torch.bfloat16)  # fmt: skip
    inputs = made(resolved)
    assert 0.5 <= inputs.scale_a <= 1.5
    assert 0.5 <= inputs.scale_b <= 1.5
    assert torch.isfinite(run(resolved, inputs)).all()


@pytest.mark.parametrize("op", ["_fused_adam_", "_fused_adamw_"])
def test_fused_optimizers_begin_after_one_step_without_infinities(op):
    state = {name: (f32(9), f32(4)) for name in ("self", "grads", "exp_avgs", "exp_avg_sqs")}
    resolved = call(
        f"aten::{op}", **state, max_exp_avg_sqs=(), state_steps=(f32(), f32()), lr=0.1, beta1=0.9,
        beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False, grad_scale=f32(),
        found_inf=f32(),
    )  # fmt: skip
    inputs = made(resolved)
    assert [step.item() for step in inputs.state_steps] == [1, 1]
    assert all((square >= 0.5).all() for square in inputs.exp_avg_sqs)
    assert (inputs.found_inf.item(), inputs.grad_scale.item()) == (0, 1)
    before = inputs.self[0].clone()
    run(resolved, inputs)
    assert torch.isfinite(inputs.self[0]).all()
    assert not torch.equal(inputs.self[0], before)


def test_gradient_scaling_finds_no_infinity():
    resolved = call("aten::_amp_foreach_non_finite_check_and_unscale_", self=(f32(9), f32(3)),
                    found_inf=f32(1), inv_scale=f32(1))  # fmt: skip
    inputs = made(resolved)
    run(resolved, inputs)
    assert inputs.found_inf == 0
    resolved = call("aten::_amp_update_scale_", self=f32(1), growth_tracker=i32(1),
                    found_inf=f32(1), scale_growth_factor=2.0, scale_backoff_factor=0.5,
                    growth_interval=2000)  # fmt: skip
    inputs = made(resolved)
    run(resolved, inputs)
    assert inputs.self == 65536
    assert inputs.growth_tracker == 1


@pytest.mark.parametrize(
    "resolved",
    [
        call("aten::fake_quantize_per_channel_affine", self=f32(4, 9), scale=f32(4),
             zero_point=i32(4), axis=0, quant_min=-8, quant_max=7),
        call("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", self=f32(99),
             scale=f32(1), zero_point=i32(1), fake_quant_enabled=i64(1), quant_min=0,
             quant_max=255),
        call("aten::fused_moving_avg_obs_fake_quant", self=f32(99), observer_on=i64(1),
             fake_quant_on=i64(1), running_min=f32(1), running_max=f32(1), scale=f32(1),
             zero_point=i32(1), averaging_const=0.1, quant_min=0, quant_max=255, ch_axis=0),
    ],
    ids=lambda v: v.op,
)  # fmt: skip
def test_quantization_has_positive_scales_and_zero_points_within_range(resolved):
    inputs = made(resolved)
    assert inputs.scale.min() >= 0.5
    assert (inputs.zero_point == 0).all()
    assert getattr(inputs, "fake_quant_enabled", 1) == 1
    assert getattr(inputs, "observer_on", 1) == 1
    run(resolved, inputs)


def test_sparse_coordinates_are_distinct_and_within_the_size():
    resolved = call("aten::sparse_coo_tensor", "indices_size", indices=i64(2, 60), values=f32(60),
                    size=(9, 8))  # fmt: skip
    inputs = made(resolved)
    rows, columns = inputs.indices
    assert within(rows, 0, 9)
    assert within(columns, 0, 8)
    assert distinct(rows * 8 + columns)
    run(resolved, inputs)
    unsized = call("aten::sparse_coo_tensor", "indices", indices=i64(2, 60), values=f32(60))
    assert within(made(unsized).indices, 0, 128)
    empty = call("aten::sparse_coo_tensor", "size", size=(9, 8), layout=torch.sparse_coo)
    assert made(empty)._inputs.recipe is None


def test_sparse_rows_ascend():
    resolved = call("aten::_convert_indices_from_coo_to_csr", self=i64(20), size=6)
    inputs = made(resolved)
    assert ascends(inputs.self)
    assert spread(inputs.self, 6)
    assert run(resolved, inputs)[-1] == 20
    resolved = call("aten::_convert_indices_from_csr_to_coo", crow_indices=i64(7),
                    col_indices=i64(20))  # fmt: skip
    inputs = made(resolved)
    assert inputs.crow_indices[0] == 0
    assert inputs.crow_indices[-1] == 20
    assert ascends(inputs.crow_indices)
    assert run(resolved, inputs).shape == (2, 20)


def test_offsets_of_diagonals_are_distinct():
    resolved = call("aten::_spdiags", diagonals=f32(3, 5), offsets=i64(3), shape=(5, 5))
    inputs = made(resolved)
    assert distinct(inputs.offsets)
    run(resolved, inputs)


@pytest.mark.parametrize("name", ["fill_", "copy_", "normal_", "zero_", "random_", "uniform_"])
def test_overwritten_tensors_have_a_recipe_that_says_nothing(name):
    assert find_recipe(f"aten::{name}").name.endswith("aten_overwritten.overwritten")


SIZES_ALONE = [
    call("aten::view", self=f32(4), size=(2, 2)),
    call("aten::slice", "Tensor", self=f32(4), end=2),
    call("aten::as_strided", self=f32(4), size=(2,), stride=(1,)),
    call("aten::split", "Tensor", self=f32(4), split_size=2),
    call("aten::narrow", self=f32(4), dim=0, start=0, length=2),
    call("aten::expand_as", self=f32(4), other=f32(3, 4)),
    call("aten::empty_like", self=f32(4)),
    call("aten::result_type", "Tensor", tensor=f32(4), other=f32(4)),
]


@pytest.mark.parametrize("resolved", SIZES_ALONE, ids=lambda resolved: resolved.op)
def test_operators_that_read_sizes_alone_fill_nothing(resolved, monkeypatch):
    def fill(*_):
        raise AssertionError("a tensor was filled that nobody reads")

    monkeypatch.setattr("opreplay._C.fill_random_", fill)
    run(resolved, made(resolved))


@pytest.mark.parametrize("name", ["reshape", "contiguous", "to", "flatten", "clone"])
def test_operators_that_may_copy_get_values(name):
    assert find_recipe(f"aten::{name}") is None


def test_every_aten_name_of_a_recipe_is_an_operator_of_torch():
    from opreplay.recipes import list_recipes

    names = {
        op for entry in list_recipes() for op in entry.ops
        if entry.origin == "built-in" and op.startswith("aten::")
    }  # fmt: skip
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    assert sorted(names - known) == []
