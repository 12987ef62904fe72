"""Recipes for operators of libraries that are not installed: calls written from their schemas."""

import pytest
import torch
from made_calls import f32, foreign_call, i32, i64, made, make, tensor


def test_boxes_have_their_corners_in_order_and_scores_are_positive():
    inputs = made(foreign_call("torchvision::nms", dets=f32(500, 4), scores=f32(500)))
    left, top, right, bottom = inputs.dets.T
    assert (left < right).all()
    assert (top < bottom).all()
    assert inputs.dets.min() >= 0
    assert inputs.dets.max() <= 1024
    assert left.unique().numel() > 200
    assert inputs.scores.min() >= 0


def test_boxes_of_another_shape_fail_the_recipe():
    skipped = make(foreign_call("torchvision::nms", dets=f32(500, 5), scores=f32(500)))
    assert "boxes are [n, 4], recorded are (500, 5)" in skipped.detail
    skipped = make(
        foreign_call("torchvision::roi_align", input=f32(2, 3, 8, 8), rois=f32(9, 4),
                     spatial_scale=1.0)
    )  # fmt: skip
    assert "regions are [n, 5], recorded are (9, 4)" in skipped.detail


@pytest.mark.parametrize("op", ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"])
def test_regions_lie_in_the_image_of_a_batch_entry_that_exists(op):
    inputs = made(
        foreign_call(f"torchvision::{op}", input=f32(3, 8, 50, 40), rois=f32(300, 5),
                     spatial_scale=0.25)
    )  # fmt: skip
    entry, left, top, right, bottom = inputs.rois.T
    assert entry.unique().tolist() == [0, 1, 2]
    assert (left < right).all()
    assert (top < bottom).all()
    assert right.max() <= 160
    assert bottom.max() <= 200


@pytest.mark.parametrize("kind", ["complete", "exclusive", "inclusive"])
def test_lengths_to_be_summed_are_not_negative(kind):
    inputs = made(foreign_call(f"fbgemm::asynchronous_{kind}_cumsum", t_in=i32(999)))
    assert inputs.t_in.min() >= 0
    assert inputs.t_in.max() > 0


@pytest.mark.parametrize(
    ("op", "lengths", "features"),
    [("permute_2D_sparse_data", i32(6, 40), 6), ("permute_1D_sparse_data", i32(40), 40)],
)
def test_lengths_add_up_to_the_values_and_features_are_permuted(op, lengths, features):
    inputs = made(
        foreign_call(f"fbgemm::{op}", permute=i32(features), lengths=lengths, values=i32(999))
    )
    assert inputs.lengths.sum() == 999
    assert inputs.lengths.min() >= 0
    assert sorted(inputs.permute.tolist()) == list(range(features))


def test_bucketized_lengths_add_up_and_every_index_has_a_bucket():
    inputs = made(
        foreign_call("fbgemm::block_bucketize_sparse_features", lengths=i32(40), indices=i32(999),
                     bucketize_pos=False, sequence=False, block_sizes=i32(5), my_size=4,
                     weights=None)
    )  # fmt: skip
    assert inputs.lengths.sum() == 999
    assert inputs.indices.min() >= 0
    assert (inputs.indices.max() // inputs.block_sizes).max() < 4


def test_checked_indices_are_within_bounds_and_offsets_cover_them():
    inputs = made(
        foreign_call("fbgemm::bounds_check_indices", rows_per_table=i64(6), indices=i64(999),
                     offsets=i64(61), bounds_check_mode=1, warning=i64(1), weights=None)
    )  # fmt: skip
    assert inputs.indices.min() >= 0
    assert inputs.indices.max() < inputs.rows_per_table.min()
    assert inputs.offsets[0] == 0
    assert inputs.offsets[-1] == 999
    assert (inputs.offsets.diff() >= 0).all()
    assert inputs.warning.item() == 0


def test_jagged_offsets_of_each_level_end_at_the_sequences_of_the_next():
    inputs = made(
        foreign_call("fbgemm::jagged_to_padded_dense", values=f32(30, 2),
                     offsets=(i64(4), i64(11)), max_lengths=(4, 3), padding_value=0.0)
    )  # fmt: skip
    assert inputs.offsets[0].tolist() == [0, 4, 7, 10]
    assert inputs.offsets[1].tolist() == list(range(0, 31, 3))


def test_dense_rows_become_jagged_ones():
    inputs = made(
        foreign_call("fbgemm::dense_to_jagged", dense=f32(4, 8, 2), x_offsets=(i64(5),), total_L=18)
    )
    assert inputs.x_offsets[0].tolist() == [0, 5, 10, 14, 18]


def test_a_plan_whose_planner_is_not_here_fails_by_its_name():
    skipped = make(
        foreign_call(
            "aiter::mla_decode_stage1_asm_fwd", Q=f32(8, 4, 72), KV=f32(900, 1, 1, 72),
            qo_indptr=i32(9), kv_indptr=i32(9), kv_page_indices=i32(900),
            kv_last_page_lens=i32(8), max_seqlen_q=1, work_meta_data=tensor(torch.uint64, 2),
            work_indptr=i32(9), work_info_set=i32(16, 8),
        )
    )  # fmt: skip
    assert skipped.reason == "recipe_failed"
    assert "aiter::_get_mla_metadata_v1_impl, which makes an argument, is not" in skipped.detail


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aiter::paged_attention_ragged", "has no kv_indptr; it has there"),
        ("aiter::mha_varlen_fwd", "has no tensor 'q'; it has there"),
        ("_C_cache_ops::concat_and_cache_mla", "no argument 'kv_cache'; it has there"),
        ("_C::rotary_embedding", "has no argument 'positions'; it has there"),
    ],
)
def test_an_argument_of_another_name_fails_the_recipe_with_the_names_there(op, said):
    assert said in make(foreign_call(op, there=f32(3))).detail
