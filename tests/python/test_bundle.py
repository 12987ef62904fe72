"""Bundles: what C++ makes of a description equals what Python makes of the call, bit for bit."""

from __future__ import annotations

import io
import struct
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from kineto_events import TINY_TRACE
from made_calls import GIB, call, f32, i32, i64, mask, tensor

from opreplay import _C
from opreplay.bundle import write_bundle
from opreplay.inputs import make_inputs
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall, planned
from opreplay.recipes import recipe, remove_recipe, run_operator
from opreplay.replay import make_plan
from opreplay.resolve.call import ResolvedCall, TensorSpec, TorchValue
from opreplay.trace import Selection
from opreplay.trace.call import RecordedTimes, Skipped

CPU = torch.device("cpu")
HERE = ReplayOptions(isolation=False, device="cpu", memory_budget=GIB, seed=7)
SCHEMAS = {
    "_C": "paged_attention_v1(Tensor! out, Tensor query, Tensor key_cache, Tensor value_cache, "
    "int num_kv_heads, float scale, Tensor block_tables, Tensor seq_lens, int block_size, "
    "int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) "
    "-> ()",
    "_moe_C": "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, "
    "Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad, "
    "Tensor? maybe_expert_map) -> ()",
    "aiter": "ck_moe_stage1(Tensor hidden_states, Tensor w1, Tensor w2, Tensor sorted_token_ids, "
    "Tensor sorted_expert_ids, Tensor num_valid_ids, Tensor! out, int topk, str? kernelName=None, "
    "Tensor? w1_scale=None, Tensor? a1_scale=None, int block_m=32, Tensor? sorted_weights=None) "
    "-> ()",
    "bundle_test": "takes_handle(Tensor a, Tensor handle) -> Tensor",
}
PRODUCERS = (
    "make_handle(Tensor weight, int size) -> int",
    "drop_handle(int handle) -> ()",
    "make_metadata(Tensor lengths) -> (Tensor, Tensor)",
)


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """The operators' schemas, where their libraries are not installed."""
    made = []
    for namespace, schema in SCHEMAS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        if not torch._C._jit_get_schemas_for_operator(f"{namespace}::{schema.split('(')[0]}"):
            library.define(schema)
        made.append(library)
    for schema in PRODUCERS:
        made[-1].define(schema)
    yield
    for library in made:
        library._destroy()


@contextmanager
def filled_by(function, *ops):
    recipe(*ops)(function)
    try:
        yield
    finally:
        remove_recipe(function)


def as_planned(resolved: ResolvedCall) -> PlannedCall:
    times = RecordedTimes(12.5, 25.0, 20.0)
    return PlannedCall(
        resolved.op,
        "signature",
        None,
        None,
        True,
        2,
        times,
        None,
        (),
        False,
        None,
        planned(resolved),
    )


def content_of(path):
    return torch.load(io.BytesIO(path.read_bytes()[32:]))


def bundled(resolved, path, *, options=HERE):
    report = write_bundle([as_planned(resolved)], path / "x.bundle.pt", options=options)
    assert report.left_out == ()
    return _C.Bundle(str(path / "x.bundle.pt")).prepare(0, CPU).arguments()


def assert_same_bits(one, other):
    if isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_bits(left, right)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        memories = [
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            for tensor in (one, other)
        ]
        assert torch.equal(*memories)
    elif isinstance(one, torch.Generator):
        assert one.initial_seed() == other.initial_seed()
    else:
        assert repr(one) == repr(other)


BLOCKS = {
    "op": "_C::paged_attention_v1", "out": f32(5, 8, 64), "query": f32(5, 8, 64),
    "key_cache": f32(40, 8, 16, 16, 4), "value_cache": f32(40, 8, 64, 16), "num_kv_heads": 8,
    "scale": 0.125, "block_tables": i32(5, 7), "seq_lens": i32(5), "block_size": 16,
    "max_seq_len": 100, "alibi_slopes": f32(8), "kv_cache_dtype": "auto", "k_scale": f32(1),
    "v_scale": f32(1),
}  # fmt: skip
CASES = {
    "floats": {"op": "aten::mm", "self": f32(3, 4), "mat2": tensor(torch.bfloat16, 4, 5)},
    "strides and zeros": {"op": "aten::mm", "self": f32(3, 4, strides=(0, 7)), "mat2": f32(0, 4)},
    "shared storage": {
        "op": "aten::mul", "overload": "Tensor",
        "self": TensorSpec(torch.float32, (4,), (2,), 9, (0, 0)),
        "other": TensorSpec(torch.float32, (4,), (2,), 9, (0, 1)),
    },
    "eight bits": {"op": "aten::neg", "self": tensor(torch.float8_e4m3fn, 33)},
    "quantized": {"op": "aten::neg", "self": tensor(torch.quint8, 3, 3)},
    "bits": {"op": "aten::neg", "self": tensor(torch.bits16, 9)},
    "numbers, lists and a dtype": {
        "op": "aten::sum", "overload": "dim_IntList", "self": f32(3, 4), "dim": (0, -1),
        "dtype": TorchValue("dtype", "float64"),
    },
    "complex and a 64-bit number": {
        "op": "aten::add", "overload": "Tensor", "self": tensor(torch.complex64, 3),
        "other": 2**40, "alpha": 1 + 2j,
    },
    "device, layout and generator": {
        "op": "aten::rand", "overload": "generator", "size": (2, 3),
        "generator": TorchValue("generator", ""), "layout": TorchValue("layout", "strided"),
        "device": TorchValue("device", ""),
    },
    "uniform indices": {
        "op": "aten::embedding", "weight": f32(10, 4), "indices": i64(2, 3),
    },
    "distinct indices": {
        "op": "aten::index_copy", "self": f32(9, 2), "dim": 0, "index": i64(5), "source": f32(5, 2),
    },
    "a list with None, a mask among it": {
        "op": "aten::index_put_", "self": f32(4, 6), "indices": (None, mask(6)),
        "values": f32(3),
    },
    "a matrix made positive definite": {"op": "aten::linalg_cholesky", "self": f32(4, 4)},
    "a mask": {
        "op": "aten::scaled_dot_product_attention", "query": f32(1, 2, 4, 8),
        "key": f32(1, 2, 6, 8), "value": f32(1, 2, 6, 8), "attn_mask": mask(4, 6),
    },
    "block table and lengths": BLOCKS,
    "expert routing": {
        "op": "_moe_C::moe_align_block_size", "topk_ids": i32(16, 2), "num_experts": 8,
        "block_size": 4, "sorted_token_ids": i32(56), "experts_ids": i32(14),
        "num_tokens_post_pad": i32(1), "maybe_expert_map": i32(8),
    },
    "sorted experts": {
        "op": "aiter::ck_moe_stage1", "hidden_states": f32(16, 8), "w1": f32(8, 16, 8),
        "w2": f32(8, 8, 8), "sorted_token_ids": i32(32 + 8 * 32 - 2),
        "sorted_expert_ids": i32(9), "num_valid_ids": i32(2), "out": f32(16, 2, 8), "topk": 2,
        "sorted_weights": f32(32 + 8 * 32 - 2),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_arguments_made_in_cpp_equal_those_made_in_python(case, tmp_path):
    values = dict(case)
    resolved = call(values.pop("op"), values.pop("overload", ""), **values)
    inputs = make_inputs(resolved, device="cpu", seed=HERE.seed, memory_budget=GIB)
    (operator,) = (
        one
        for one in _C.OperatorIndex().overloads(resolved.resolved_op)
        if one.overload == resolved.overload
    )
    expected = _C.Call(operator, inputs.arguments).arguments()
    for argument, one, other in zip(
        resolved.arguments, expected, bundled(resolved, tmp_path), strict=True
    ):
        if not argument.output:
            assert_same_bits(one, other)


def test_a_table_is_described_by_its_builder_and_not_stored(tmp_path):
    values = dict(BLOCKS)
    bundled(call(values.pop("op"), **values), tmp_path)
    content = content_of(tmp_path / "x.bundle.pt")
    steps = [step["op"] for step in content["calls"][0]["steps"]]
    assert "opreplay::seq_lens" in steps
    assert "opreplay::block_table" in steps
    assert sum(constant.numel() for constant in content["constants"]) == 0


def test_weights_that_no_recipe_reads_are_not_filled_when_described(tmp_path):
    values = dict(BLOCKS)
    bundled(call(values.pop("op"), **values), tmp_path)
    described = content_of(tmp_path / "x.bundle.pt")["calls"][0]
    cache = described["arguments"][2]
    assert cache[:2] == ("tensor", "float32")
    assert cache[8] == "random"


def test_a_cache_has_the_blocks_that_the_budget_allows(tmp_path):
    values = dict(BLOCKS)
    resolved, budget = call(values.pop("op"), **values), 2 << 20
    bundled(resolved, tmp_path, options=replace(HERE, memory_budget=budget))
    made = make_inputs(resolved, device="cpu", seed=HERE.seed, memory_budget=budget)
    cache = content_of(tmp_path / "x.bundle.pt")["calls"][0]["arguments"][2]
    assert cache[2] == list(made.arguments[2].shape)
    assert cache[2][0] < 40
    assert cache[4] == made.arguments[2].numel()


def with_handle(function):
    return filled_by(function, "bundle_test::takes_handle")


HANDLE_CALL = {"a": f32(3), "handle": i64()}


def test_a_produced_handle_is_made_again_and_given_back(tmp_path):
    seen = []
    library = torch.library.Library("bundle_test", "FRAGMENT")
    library.impl("make_handle", lambda weight, size: seen.append(size) or 40 + len(seen), "CPU")
    library.impl(
        "drop_handle", lambda handle: seen.append(("drop", handle)), "CompositeExplicitAutograd"
    )

    def fill(call):
        weight = torch.rand(4, generator=torch.Generator().manual_seed(3)).sub_(0.5)
        handle = run_operator("bundle_test::make_handle", weight, 32)
        call.replace("handle", handle, release="bundle_test::drop_handle")

    with with_handle(fill):
        arguments = bundled(call("bundle_test::takes_handle", **HANDLE_CALL), tmp_path)
    assert seen == [32, ("drop", 41), 32]
    assert arguments[1].tolist() == 43
    del arguments
    assert seen[3:] == [("drop", 43)]
    library._destroy()


def test_a_produced_tensor_is_an_output_of_its_operator(tmp_path):
    library = torch.library.Library("bundle_test", "FRAGMENT")
    library.impl("make_metadata", lambda lengths: (lengths + 1, lengths * 2), "CPU")

    def fill(call):
        made = run_operator("bundle_test::make_metadata", torch.tensor([4, 5]))
        call.replace("handle", made[1])

    with with_handle(fill):
        arguments = bundled(call("bundle_test::takes_handle", **HANDLE_CALL), tmp_path)
    assert arguments[1].tolist() == [8, 10]
    library._destroy()


@pytest.mark.parametrize(
    ("fill", "why"),
    [
        (lambda call: call.tensor("a").write(torch.rand(3)), "draws from torch's own generator"),
        (lambda call: call.replace("handle", 4711), "a handle was made outside any operator"),
    ],
    ids=["global generator", "foreign handle"],
)
def test_what_no_one_can_repeat_is_left_out_with_a_sentence(fill, why, tmp_path):
    with with_handle(fill):
        one = as_planned(call("bundle_test::takes_handle", **HANDLE_CALL))
        report = write_bundle([one], tmp_path / "x", options=HERE)
    assert report.written == 0
    assert why in report.left_out[0][1]


def test_an_operator_registered_from_python_is_warned_of(tmp_path):
    one = as_planned(call("bundle_test::takes_handle", **HANDLE_CALL))
    report = write_bundle([one], tmp_path / "x", options=HERE)
    assert report.warnings == (
        "bundle_test::takes_handle is registered from Python; a process without Python lacks it",
    )


def test_skipped_calls_and_python_functions_are_left_out(tmp_path):
    skipped = as_planned(call("aten::neg", self=f32(2)))
    object.__setattr__(skipped, "outcome", Skipped("collective", "it needs a group"))
    function = as_planned(ResolvedCall("a::b", "a::b", "", None, (), (), ()))
    report = write_bundle([skipped, function], tmp_path / "x", options=HERE)
    assert [why for _, why in report.left_out] == [
        "it needs a group", "a::b is a Python function without a schema; C++ cannot call it",
    ]  # fmt: skip


def test_a_recorded_trace_is_bundled_and_runs(tmp_path):
    plan = make_plan(TINY_TRACE, Selection(), options=HERE)
    report = write_bundle(plan.calls, tmp_path / "x", options=HERE)
    bundle = _C.Bundle(str(tmp_path / "x"))
    assert len(bundle) == report.written > 3
    for index in range(len(bundle)):
        bundle.prepare(index, CPU).run()


def written(tmp_path, **values):
    path = tmp_path / "x.bundle.pt"
    one = as_planned(call("aten::mm", self=f32(2, 3), mat2=f32(3, 2)))
    write_bundle([one], path, options=HERE)
    content = content_of(path)
    content["calls"][0].update(values)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    _C.write_bundle(str(path), buffer.getvalue())
    return path


HEADER_FAULTS = {
    "no bundle": (lambda b: b"x" * 64, "is no opreplay bundle"),
    "empty": (lambda b: b"", "is no opreplay bundle"),
    "newer": (
        lambda b: b[:16] + struct.pack("<I", 9) + b[20:],
        "has bundle format 9, this opreplay reads format 1",
    ),
    "cut": (lambda b: b[:-5], "bytes behind its header, which promises"),
    "damaged": (lambda b: b[:-5] + b"Z" + b[-4:], "is damaged, its checksum differs"),
}


@pytest.mark.parametrize(("change", "why"), HEADER_FAULTS.values(), ids=HEADER_FAULTS)
def test_a_file_that_is_no_whole_bundle_is_refused(change, why, tmp_path):
    path = written(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"x.bundle.pt: .*{why}.*write it with: opreplay bundle"):
        _C.Bundle(str(path))


def test_the_checksum_is_crc32c(tmp_path):
    _C.write_bundle(str(tmp_path / "x"), b"123456789")
    header = (tmp_path / "x").read_bytes()[:32]
    # 0xe3069283 is the check value of CRC-32C in the catalogue of CRCs.
    assert struct.unpack("<16sIIQ", header) == (b"opreplay-bundle\0", 1, 0xE3069283, 9)


CALL_FAULTS = {
    "unregistered": ({"op": "no::such"}, r"no library in this process registers.*no::such"),
    "schema": ({"schema": "aten::mm(Tensor self) -> Tensor"}, "the schema differs.*aten::mm"),
    "dims": (
        {"arguments": [("tensor", "float32", [9], [1], 3, -1, 0, False, "none", 0, 0), None]},
        "reach element 8 of a storage of 3",
    ),
    "type": ({"arguments": ["text", None]}, r"expected Tensor, got String[\s\S]*argument self"),
    "count": ({"arguments": [None]}, "takes 2 arguments, 1 are described"),
    "step": (
        {"steps": [{"op": "aten::neg", "overload": "", "arguments": [("output", 4, 0, -1)]}]},
        r"step 4 is referred to, there are 0[\s\S]*step 0 \(aten::neg\)",
    ),
}


@pytest.mark.parametrize(("fault", "why"), CALL_FAULTS.values(), ids=CALL_FAULTS)
def test_a_call_that_cannot_be_prepared_is_named(fault, why, tmp_path):
    bundle = _C.Bundle(str(written(tmp_path, **fault)))
    with pytest.raises((ValueError, TypeError), match=why) as caught:
        bundle.prepare(0, CPU)
    assert "x.bundle.pt: call 0" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"mode": "fast"}, "calls.*mode: expected one of inference, no_grad, grad, not 'fast'"),
        ({"arguments": [("tensor", 1), None]}, r"arguments\[0\]: expected 11 values"),
        ({"arguments": [("what", 1), None]}, r"arguments\[0\]\[0\]: expected one of tensor, "),
        ({"count": None}, "count: expected an integer, got None"),
        ({"steps": 3}, "steps: expected a list, got Int"),
    ],
)
def test_a_malformed_entry_is_named(fault, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        _C.Bundle(str(written(tmp_path, **fault)))
