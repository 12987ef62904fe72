import math

import pytest
import torch
from made_calls import GIB, call, f32, foreign_call, i32, i64, made, make, mask, run, tensor

from opreplay import inputs as module
from opreplay.inputs import Inputs, make_inputs
from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue
from opreplay.resolve.dtypes import SCALAR_TYPES
from opreplay.trace.call import Skipped

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
TABLE = [dtype for dtype in SCALAR_TYPES if dtype is not None]


def bytes_of(value):
    """The storage's bytes, read without any kernel of the dtype."""
    return torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())


def only(spec, op="aten::sin"):
    return foreign_call(op, self=spec)


@pytest.mark.parametrize("dtype", TABLE, ids=str)
def test_r5_every_dtype_of_the_table_is_initialised(dtype):
    value = made(only(tensor(dtype, 64))).self
    assert value.dtype is dtype
    assert tuple(value.shape) == (64,)
    # Untouched memory would make equal calls differ.
    assert torch.equal(bytes_of(value), bytes_of(made(only(tensor(dtype, 64))).self))
    assert len(bytes_of(value).unique()) > 1


@pytest.mark.parametrize("op", ["aten::sin", "custom::op"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16], ids=str)
def test_r5_char_and_short_are_initialised_with_and_without_a_schema(op, dtype):
    value = made(only(tensor(dtype, 100), op)).self.long()
    low, high = (1, 65) if op == "aten::sin" else (0, 1)
    assert ((value >= low) & (value < high)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_are_uniform_in_minus_one_to_one(dtype):
    value = made(only(tensor(dtype, 4096))).self.double()
    assert value.min() >= -1
    assert value.max() < 1
    assert abs(value.mean()) < 0.15  # three significand bits: the mean of -4/4 to 3/4 is -1/8
    assert 0.5 < value.std() < 0.66  # 1 / sqrt(3) = 0.577


def test_integers_of_aten_are_positive_and_fit_every_dtype():
    value = made(only(i64(4096))).self
    assert (value.min(), value.max()) == (1, 64)


def test_bools_are_true_and_false_with_equal_odds():
    assert 0.4 < made(only(mask(4096))).self.float().mean() < 0.6


def test_integers_of_other_namespaces_are_zero_and_listed_as_an_assumption():
    inputs = make(foreign_call("custom::op", x=f32(3), table=i32(4), more=i64(5), flags=mask(2)))
    assert inputs.arguments[1].tolist() == [0] * 4
    assert inputs.assumptions == (
        "no recipe knows the integers of custom::op: zeros in table, more",
    )


@pytest.mark.parametrize("op", ["aten::sin", "custom::op"])
def test_floats_and_aten_integers_are_no_assumption(op):
    assert make(only(f32(3), op)).assumptions == ()
    assert make(only(i64(3))).assumptions == ()


def test_r19_output_buffers_are_not_filled(monkeypatch):
    filled = []
    monkeypatch.setattr(
        module.InputTensor, "_fill_random", lambda self: filled.append(self.dims), raising=True
    )
    make(call("aten::sin", "out", self=f32(7), out=f32(9)))
    assert filled == [(7,)]


def test_r19_a_tensor_that_is_overwritten_in_place_is_not_filled(monkeypatch):
    filled = []
    monkeypatch.setattr(module.InputTensor, "_fill_random", lambda self: filled.append(self.dims))
    make(call("aten::copy_", self=f32(7), src=f32(9)))
    assert filled == [(9,)]


def test_a_tensor_that_is_read_and_written_in_place_is_filled():
    value = made(call("aten::sin_", self=f32(1000))).self
    assert value.std() > 0.5


@pytest.mark.parametrize(
    ("dims", "strides", "storage"),
    [
        ((), (), 1),
        ((3, 4), (4, 1), 12),
        ((3, 4), (1, 3), 12),
        ((0,), (1,), 0),
        ((2, 0, 3), (3, 3, 1), 6),
        ((4,), (3,), 100),
    ],
)
def test_dims_strides_and_storage_extent_are_exact(dims, strides, storage):
    value = made(only(f32(*dims, strides=strides, storage=storage))).self
    assert tuple(value.shape) == dims
    assert value.stride() == strides
    assert value.untyped_storage().nbytes() == 4 * storage
    assert value.storage_offset() == 0


def test_r32_a_stride_of_zero_repeats_one_row_of_a_filled_storage():
    value = made(only(f32(5, 8, strides=(0, 1)))).self
    assert value.untyped_storage().nbytes() == 32
    assert (value == value[0]).all()
    assert value[0].std() > 0.3


def test_r32_overlapping_windows_share_their_elements():
    value = made(only(f32(6, 4, strides=(1, 1)))).self
    assert value.untyped_storage().nbytes() == 9 * 4
    assert torch.equal(value[1:, :-1], value[:-1, 1:])


def test_inputs_are_plain_tensors_and_no_views_even_under_inference_mode():
    with torch.inference_mode():
        value = made(only(f32(5, 8, strides=(0, 1)))).self
    assert not value.is_inference()
    assert not value._is_view()
    assert not value.requires_grad


def test_r33_tensor_lists_are_lists_of_tensors_that_differ():
    value = made(call("aten::cat", tensors=(f32(16), f32(16), f32(2, 3)))).tensors
    assert isinstance(value, list)
    assert [tuple(item.shape) for item in value] == [(16,), (16,), (2, 3)]
    assert not torch.equal(value[0], value[1])


def test_optional_elements_of_a_list_stay_none():
    value = made(call("aten::index", "Tensor", self=f32(4, 5), indices=(None, i64(3)))).indices
    assert value[0] is None
    assert tuple(value[1].shape) == (3,)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TorchValue("dtype", "bfloat16"), torch.bfloat16),
        (TorchValue("layout", "strided"), torch.strided),
        (TorchValue("memory_format", "channels_last"), torch.channels_last),
        (TorchValue("device", "cuda"), torch.device("cpu")),
        ("mean", "mean"),
        (3, 3),
        (None, None),
        ((1, 2), [1, 2]),
        ((), []),
    ],
    ids=str,
)
def test_r34_values_that_are_no_tensors_take_their_python_form(value, expected):
    assert made(only(value)).self == expected


def test_r34_a_generator_is_seeded():
    first, second = (made(only(TorchValue("generator", "")), seed=7).self for _ in range(2))
    assert torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=second))


def test_a_storage_argument_is_a_storage():
    spec = f32(2, storage=50)
    resolved = ResolvedCall(
        "aten::set_", "aten::set_", "", None, (Argument("source", "Storage", spec, False, False),),
        (), (),
    )  # fmt: skip
    (value,) = make(resolved).arguments
    assert isinstance(value, torch.UntypedStorage)
    assert value.nbytes() == 200


def test_bits_depend_on_the_seed_the_argument_and_the_place_in_the_list_only():
    resolved = foreign_call("aten::op", a=f32(32), b=f32(32), c=(f32(32), f32(32)))
    first, second, other = (make(resolved, seed=seed).arguments for seed in (1, 1, 2))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], other[0])
    tensors = [first[0], first[1], *first[2]]
    assert len({tuple(value.tolist()) for value in tensors}) == 4
    longer = foreign_call("aten::op", a=i64(1000), b=f32(32))
    assert torch.equal(make(longer, seed=1).arguments[1], first[1])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (f32(10, storage=100), 400),
        (tensor(torch.complex128, 3), 48),
        (tensor(torch.bool, 3), 3),
        (tensor(torch.quint4x2, 5), 3),
        (tensor(torch.quint2x4, 5), 2),
        (f32(5, 8, strides=(0, 1)), 32),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_storages(spec, expected):
    inputs = make(only(spec))
    assert inputs.bytes == expected
    assert inputs.arguments[0].untyped_storage().nbytes() == expected


def test_a_call_over_the_budget_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(module, "_allocate", lambda *_: pytest.fail("allocated"))
    skipped = make(foreign_call("aten::op", a=f32(1 << 40), b=f32(1 << 40)), budget=GIB)
    assert skipped == Skipped(
        "over_memory_budget",
        "the call's tensors need 8.19e+03 GiB, 1 GiB are allowed; --memory-budget allows more",
    )


def test_copies_count_towards_the_budget():
    resolved = only(f32(256))
    assert isinstance(make(resolved, budget=3 * 1024, copies=2), Inputs)
    skipped = make(resolved, budget=3 * 1024, copies=3)
    assert skipped.reason == "over_memory_budget"
    assert "with 3 copies" in skipped.detail


def test_lists_count_towards_the_budget():
    assert make(call("aten::cat", tensors=(f32(256), f32(256))), budget=2047).reason == (
        "over_memory_budget"
    )


def test_a_dtype_that_the_device_lacks_is_backend_missing(monkeypatch):
    def refuse(*_args, **_options):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(module.torch, "empty", refuse)
    skipped = make(only(tensor(torch.float64, 3)))
    assert skipped.reason == "backend_missing"
    assert "float64" in skipped.detail


def test_an_operator_runs_on_what_was_made_for_it():
    resolved = call("aten::addmm", self=f32(4), mat1=f32(3, 5), mat2=f32(5, 4))
    inputs = made(resolved)
    expected = inputs.self + inputs.mat1 @ inputs.mat2
    torch.testing.assert_close(run(resolved, inputs), expected)


def test_a_spec_needs_no_more_than_its_storage():
    spec = TensorSpec(torch.float32, (2, 3), (3, 1), 6)
    assert module.storage_bytes(spec) == math.prod(spec.dims) * 4
    assert isinstance(make_inputs(only(spec), device="cpu", seed=0, memory_budget=24), Inputs)
