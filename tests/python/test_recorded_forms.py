"""Forms in which engines' operators were recorded, today's and older ones, resolve and run."""

import pytest
import torch
from kineto_events import op, trace_of
from made_calls import f32, i32, tensor
from moe_schemas import AITER, DENSE, VLLM, recorded, registered

from opreplay import replay
from opreplay.options import ReplayOptions
from opreplay.stat import TimingOptions

ROWS, DEPTH, COLUMNS = 4, 64, 32
WEIGHT, INPUT = tensor(torch.bfloat16, COLUMNS, DEPTH), tensor(torch.bfloat16, ROWS, DEPTH)
F8 = torch.float8_e4m3fn


def silu_and_mul(result, given):
    gate, up = given.chunk(2, -1)
    torch.mul(torch.nn.functional.silu(gate), up, out=result)


def skinny(weight, given, *rest):
    return given @ weight.t()


def skinny_quantised(weight, given, bias, out, scale_a, scale_b, units):
    torch.matmul(given.float() * scale_b, (weight.float() * scale_a).t(), out=out)


KERNELS = {
    "_C::silu_and_mul": silu_and_mul, "_rocm_C::LLMM1": skinny, "_rocm_C::wvSplitK": skinny,
    "_rocm_C::wvSplitKQ": skinny_quantised,
}  # fmt: skip
CALLS = {
    "_C::silu_and_mul": {
        "result": tensor(torch.bfloat16, ROWS, DEPTH),
        "input": tensor(torch.bfloat16, ROWS, 2 * DEPTH),
    },
    "_rocm_C::LLMM1": {"in_a": WEIGHT, "in_b": INPUT, "rows_per_block": 4},
    "_rocm_C::wvSplitK": {"in_a": WEIGHT, "in_b": INPUT, "CuCount": 304},
    "_rocm_C::wvSplitKQ": {
        "in_a": tensor(F8, COLUMNS, DEPTH), "in_b": tensor(F8, ROWS, DEPTH),
        "out_c": tensor(torch.float32, ROWS, COLUMNS), "scale_a": tensor(torch.float32, 1),
        "scale_b": tensor(torch.float32, 1), "CuCount": 304,
    },
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def libraries():
    with registered(*DENSE, kernels=KERNELS):
        yield


def row_of(tmp_path, name, entries):
    types, dims, values = zip(*entries, strict=True)
    strides = [[] if not d else list(torch.empty(d, device="meta").stride()) for d in dims]
    trace = trace_of(tmp_path, op(name, types=types, dims=dims, strides=strides, values=values))
    timing = TimingOptions(time_s=0.002, cold=False)
    options = ReplayOptions(timing=timing, isolation=False, device="cpu")
    (row,) = replay(trace, options=options).rows
    return row


@pytest.mark.parametrize("name", CALLS)
def test_an_event_of_today_runs(tmp_path, name):
    row = row_of(tmp_path, name, recorded(name, CALLS[name]))
    assert (row.status, row.resolved_op, row.assumptions) == ("ok", name, ()), row.detail
    assert row.timing.host_ns.median > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_C::wvSpltK", "_rocm_C::wvSplitK"),
        ("_rocm_C::wvSpltK", "_rocm_C::wvSplitK"),
        ("_rocm_C::wvSplitK", "_rocm_C::wvSplitK"),
        ("_rocm_C::wvSplitKQ", "_rocm_C::wvSplitKQ"),
    ],
)
def test_an_event_from_before_the_bias_runs_under_the_new_name_without_one(tmp_path, old, new):
    entries = list(recorded(new, CALLS[new]))
    del entries[2]
    row = row_of(tmp_path, old, entries)
    assert (row.status, row.resolved_op) == ("ok", new), row.detail
    renamed = () if old == new else (f"{old} is called {new} here",)
    assert row.assumptions == (
        *renamed,
        "in_bias: the recorded form has no such argument, None was taken",
    )


def test_an_event_of_aiters_older_sorter_runs_on_the_newer_one(tmp_path):
    tokens, top_k, experts, block = 9, 2, 4, 8
    length = tokens * top_k + experts * block - top_k
    named = {
        "topk_ids": i32(tokens, top_k), "topk_weights": f32(tokens, top_k),
        "sorted_token_ids": i32(length), "sorted_weights": f32(length),
        "sorted_expert_ids": i32(length // block), "num_valid_ids": i32(2),
        "moe_buf": INPUT, "num_experts": experts, "unit_size": block,
    }  # fmt: skip
    forms = {schema.partition("(")[0]: schema for schema in AITER}
    with registered(forms["aiter::moe_sorting_fwd"]):
        entries = list(recorded("aiter::moe_sorting_fwd", named))
    with registered(forms["aiter::moe_sorting_opus_fwd"]):
        row = row_of(tmp_path, "aiter::moe_sorting_fwd", entries)
    assert (row.status, row.resolved_op) == ("ok", "aiter::moe_sorting_opus_fwd"), row.detail
    assert "workspace: the recorded form has no such argument, None was taken" in row.assumptions
    assert row.recipe.startswith("9 tokens of 2 of 4 experts")


def test_an_event_from_before_gates_is_taken_as_gated(tmp_path):
    (schema,) = (form for form in VLLM if form.startswith("_C::get_cutlass_moe_mm_data"))
    named = {
        "topk_ids": i32(9, 2), "expert_offsets": i32(5), "problem_sizes1": i32(4, 3),
        "problem_sizes2": i32(4, 3), "input_permutation": i32(18), "output_permutation": i32(18),
        "num_experts": 4, "n": 8, "k": 16,
    }  # fmt: skip
    with registered(schema):
        entries = list(recorded("_C::get_cutlass_moe_mm_data", named | {"is_gated": True}))
        row = row_of(tmp_path, "_C::get_cutlass_moe_mm_data", entries[:-2])
    assert row.status == "ok", row.detail
    assert row.assumptions == (
        "blockscale_offsets: the recorded form has no such argument, None was taken",
        "is_gated: the recorded form has no such argument, True was taken",
    )
