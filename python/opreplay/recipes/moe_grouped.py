"""Grouped GEMMs: how many rows each expert has, as offsets, problem sizes, counts and orders."""

from __future__ import annotations

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.moe_routing import (
    PARAMETERS,
    Experts,
    describe,
    distribution,
    draw,
    fill_quantized,
    found,
    number,
    tensor,
)
from opreplay.recipes.registry import recipe
from opreplay.tables.moe import grouped_gemm

__all__: list[str] = []

SCALE_ROWS = 128
"""Block scales of an expert begin at a multiple of these rows."""

ROWS_PER_EXPERT = 64
"""Mean rows of an expert where nothing in the call tells the sum."""

_ROWS = ("a_tensors", "a", "input")
_STARTS = ("expert_offsets", "input_offset_by_experts", "expert_first_token_offset")
_SCALE_STARTS = ("sf_offsets", "blockscale_offsets", "output_scale_offset_by_experts")


@recipe("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2",
        parameters=PARAMETERS)  # fmt: skip
def grouped_mm(call: RecipeCall) -> str | None:
    """Groups have a multiple of 16 bytes of rows each where that fits; offs are their ends."""
    call.fill_floats(0.5, 1.5, "scale_a", "scale_b", "scale_result")
    if not call.has_tensor("offs"):
        return None
    offs, first, second = call.tensor("offs"), call.tensor("self"), call.tensor("mat2")
    if len(first.dims) == 3:
        total = second.dims[-1]
    else:
        total = first.dims[0] if len(second.dims) == 3 else first.dims[1]
    unit = 16 // first.dtype.itemsize
    if total % unit:
        unit = 1
    units = draw(call, total // unit, offs.numel, 1, device=offs.device)
    table = grouped_gemm(units.topk_ids, offs.numel)
    offs.write((table.offsets_inclusive * unit).to(offs.dtype))
    least, most = (int(count) * unit for count in table.tokens_per_expert.aminmax())
    return f"{offs.numel} groups of {least} to {most} of {total} rows, {distribution(call)}"


@recipe(
    "_C::cutlass_moe_mm",
    "_C::cutlass_fp4_group_mm",
    "_C::cutlass_mxfp4_group_mm",
    "_C::cutlass_w4a8_moe_mm",
    "_C::cutlass_mxfp8_grouped_mm",
    "_C::mxfp8_experts_quant",
    "_C::scaled_fp4_experts_quant",
    "_C::silu_and_mul_scaled_fp4_experts_quant",
    "_C::mxfp4_experts_quant",
    "_C::silu_and_mul_mxfp4_experts_quant",
    "_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets",
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
    "sgl_kernel::cutlass_fp4_group_mm",
    "sgl_kernel::cutlass_w4a8_moe_mm",
    "sgl_kernel::scaled_fp4_experts_quant",
    parameters=PARAMETERS,
)
def grouped_rows(call: RecipeCall) -> str:
    """The rows of all pairs lie expert after expert; each expert's are one problem."""
    starts = tensor(call, *_STARTS)
    experts = _experts(call)
    left = found(call, *_ROWS)
    if left is None:
        rows = ROWS_PER_EXPERT * experts
        call.assume(f"nothing tells the rows of all experts, {rows} were taken")
    else:
        rows = call.tensor(left).dims[0]
    routing = draw(call, rows, experts, 1, device=starts.device)
    n, k = _columns(call), _depth(call)
    table = grouped_gemm(routing.topk_ids, experts, n=n, k=k)
    starts.write(table.offsets_exclusive[: starts.numel].to(starts.dtype))
    if found(call, "b_tensors", "b", "quant_output", "problem_sizes"):
        problems = call.tensor("problem_sizes")
        assert table.problem_sizes is not None
        problems.write(table.problem_sizes.to(problems.dtype))
    _write_scale_starts(call, routing.topk_ids, experts)
    fill_quantized(call)
    _write_strides(call, n, k)
    return describe(call, routing, Experts(experts, experts))


def _experts(call: RecipeCall) -> int:
    """Reads the number of experts off weights, problem sizes and offsets, which must agree."""
    starts = tensor(call, *_STARTS).numel
    counts = {
        name: call.tensor(name).dims[0]
        for name in ("b_tensors", "b", "problem_sizes", "problem_sizes1")
        if call.has_tensor(name)
    }
    experts = next(iter(counts.values()), starts - 1)
    counts["offsets"] = starts if starts == experts else starts - 1
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise RecipeError(f"arguments are of different numbers of experts: {told}")
    return experts


def _columns(call: RecipeCall) -> int:
    if (n := number(call, "n")) is not None:
        return n
    result = found(call, "out_tensors", "out", "output", "d")
    return call.tensor(result).dims[-1] if result else 1


def _depth(call: RecipeCall) -> int:
    if (k := number(call, "k")) is not None:
        return k
    left = tensor(call, *_ROWS)
    packed = left.dtype in (torch.uint8, torch.float4_e2m1fn_x2)
    return left.dims[-1] * (2 if packed else 1)


def _write_scale_starts(call: RecipeCall, ids: torch.Tensor, experts: int) -> None:
    """Each expert's scales begin at whole blocks of rows, which the scales must have room for."""
    scales = found(call, "a_blockscale", "sfa", "output_scale", "scale_factor")
    if scales is None:
        return
    starts, room = tensor(call, *_SCALE_STARTS), call.tensor(scales).dims[0]
    padded = grouped_gemm(ids, experts, align=SCALE_ROWS).offsets_exclusive
    if int(padded[-1]) > room:
        raise RecipeError(
            f"{scales} has {room} rows, {experts} experts in blocks of {SCALE_ROWS} need "
            f"{int(padded[-1])}"
        )
    starts.write(padded[: starts.numel].to(starts.dtype))


def _write_strides(call: RecipeCall, n: int, k: int) -> None:
    """Elements from a row to the next: the depth in both operands, the columns in the result."""
    for names, step in (
        (("a_strides", "b_strides", "ab_strides", "stride_a", "stride_b"), k),
        (("c_strides", "d_strides", "stride_c", "s_strides", "group_scale_strides"), n),
    ):
        for strides in call.present(*names):
            strides.fill_integers(step, step + 1)


@recipe(
    "_moe_C::batched_moe_align_block_size",
    "_C::get_cutlass_batched_moe_mm_data",
    "_C::get_cutlass_pplx_moe_mm_data",
    "_C::persistent_masked_m_silu_mul_quant",
    "sgl_kernel::silu_and_mul_scaled_fp4_experts_quant",
    parameters=PARAMETERS,
)
def batched_rows(call: RecipeCall) -> str:
    """Each expert has a batch of its own, of which the first rows are in use."""
    counts = tensor(call, "expert_num_tokens", "counts", "mask")
    experts, room = counts.numel, number(call, "max_tokens_per_batch", "padded_m")
    if room is None:
        held, room = tensor(call, "input").dims[:2]
        if held != experts:
            raise RecipeError(f"input has {held} experts, there are counts of {experts}")
    if (block := number(call, "block_size")) is not None:
        places = experts * -(-room // block) * block
        if (recorded := call.tensor("sorted_token_ids").numel) != places:
            raise RecipeError(
                f"{experts} experts of {room} rows in blocks of {block} have {places} sorted ids, "
                f"recorded are {recorded}"
            )
    total = experts * room // 2
    call.assume(f"nothing tells how many rows are in use, half of {experts} x {room} were taken")
    routing = draw(call, total, experts, 1, device=counts.device)
    drawn = grouped_gemm(routing.topk_ids, experts).tokens_per_expert.clamp(max=room)
    counts.write(drawn.to(counts.dtype))
    fill_quantized(call)
    return f"{int(drawn.sum())} rows of {experts} x {room} in use, {distribution(call)}"


@recipe("_moe_C::moe_unpermute", parameters=PARAMETERS)
def unpermute(call: RecipeCall) -> str:
    """Each pair has the row that sorting by expert gives it."""
    rows, weights = call.tensor("inv_permuted_idx"), call.tensor("topk_weights")
    top_k = call.value("topk")
    tokens = rows.numel // top_k
    permuted = call.tensor("permuted_hidden_states").dims[0]
    if tokens * top_k != rows.numel or rows.numel > permuted:
        raise RecipeError(f"{rows.numel} pairs of {top_k} a token do not fit {permuted} rows")
    offsets = found(call, "expert_first_token_offset")
    experts = call.tensor(offsets).numel - 1 if offsets else max(top_k, 1)
    if not offsets:
        call.assume(f"nothing tells the experts, {experts} were taken")
    routing = draw(call, tokens, experts, top_k, device=rows.device)
    table = grouped_gemm(routing.topk_ids, experts)
    rows.write(table.inverse.view(rows.dims).to(rows.dtype))
    weights.write(routing.topk_weights.view(weights.dims).to(weights.dtype))
    for starts in call.present("expert_first_token_offset"):
        starts.write(table.offsets_exclusive.to(starts.dtype))
    return describe(call, routing, Experts(experts, experts))


@recipe("_moe_C::shuffle_rows", "sgl_kernel::shuffle_rows")
def shuffle_rows(call: RecipeCall) -> str:
    """Every row is taken as often as any other, from places far apart."""
    rows = tensor(call, "input_tensor", "input").dims[0]
    order = call.tensor("dst2src_map")
    order.write_distinct(rows)
    return f"{order.numel} rows taken from {rows}, each as often"


@recipe(
    "sgl_kernel::apply_shuffle_mul_sum",
    "aiter::mxfp4_moe_scatter_reduce",
    "aiter::mxfp4_moe_scatter_reduce_q",
)
def reduce_shuffled(call: RecipeCall) -> str:
    """Every pair of a token has a row of its own; its weights are positive."""
    order = tensor(call, "permutation", "reverse_sorted")
    rows = tensor(call, "input", "flat_out", "flat_out_q").dims[0]
    if order.numel > rows:
        raise RecipeError(f"{order.numel} pairs do not fit {rows} rows")
    order.write_distinct(rows)
    call.fill_floats(0.0625, 1.0, "factors", "sorted_weights")
    return f"{order.numel} distinct rows of {rows}"
