"""Resolving: which overload a recorded call called, with what, and why not."""

import logging
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from kineto_events import op, write
from recorded import call, dropped, scalar, scalars, tensor, tensors

from opreplay import _C
from opreplay.resolve import (
    ResolvedCall,
    Resolver,
    TensorSpec,
    TorchValue,
    register_namespace,
)
from opreplay.trace import read_trace
from opreplay.trace.call import RecordedArgument, Skipped


@pytest.fixture(scope="module")
def resolver():
    return Resolver()


def value(resolved, name):
    return next(a.value for a in resolved.arguments if a.name == name)


def resolve(resolver, *recorded):
    found = resolver.resolve(call(*recorded))
    assert isinstance(found, ResolvedCall), found
    return found


OVERLOADS = [
    ("aten::mm", (tensor(2, 3), tensor(3, 4)), ""),
    ("aten::mm", (tensor(2, 3), tensor(3, 4), tensor(2, 4)), "out"),
    ("aten::add", (tensor(2), tensor(2), scalar("1")), "Tensor"),
    ("aten::add", (tensor(2), scalar("3"), scalar("1")), "Scalar"),
    ("aten::max", (tensor(2, 3),), ""),
    ("aten::max", (tensor(2, 3), scalar("1"), scalar("False")), "dim"),
    ("aten::max", (tensor(2, 3), tensor(2, 3)), "other"),
    ("aten::min", (tensor(2, 3, type="int"), tensor(type="long int")), "other"),
    ("aten::abs", (tensor(2), tensor(2)), "out"),
    ("aten::view", (tensor(6), scalars("[2, 3]")), ""),
    ("aten::view", (tensor(6), scalar("5")), "dtype"),
    ("aten::split", (tensor(6), scalar("2"), scalar("0")), "Tensor"),
    ("aten::split", (tensor(6), scalars("[2, 4]"), scalar("0")), "sizes"),
    (
        "aten::to",
        (tensor(2), scalar("15"), scalar("False"), scalar("False"), dropped()),
        "dtype",
    ),
    (
        "aten::to",
        (tensor(2), tensor(3, type="double"), scalar("False"), scalar("False"), dropped()),
        "other",
    ),
    ("aten::div", (tensor(2), tensor(2), dropped()), "Tensor_mode"),
    ("aten::sum", (tensor(2, 3), dropped()), ""),
    ("aten::sum", (tensor(2, 3), scalars("[1]"), scalar("True"), dropped()), "dim_IntList"),
]


@pytest.mark.parametrize(("name", "arguments", "overload"), OVERLOADS)
def test_overload_is_told_from_the_recorded_arguments(resolver, name, arguments, overload):
    assert resolve(resolver, name, *arguments).overload == overload


@pytest.mark.parametrize("name", ["aten::max", "aten::min"])
def test_a_wrapped_number_does_not_pick_an_out_overload(resolver, name):
    resolved = resolve(resolver, name, tensor(4), tensor(type="double"))
    assert resolved.overload == "other"
    assert value(resolved, "other") == 1.0
    assert any("Python number" in a for a in resolved.assumptions)


def test_a_zero_dim_tensor_of_the_partners_dtype_stays_a_tensor(resolver):
    resolved = resolve(resolver, "aten::mul", tensor(4, type="double"), tensor(type="double"))
    assert isinstance(value(resolved, "other"), TensorSpec)
    assert resolved.assumptions == ()


def test_index_holds_every_overload_that_the_dispatcher_names():
    index = _C.OperatorIndex()
    by_name = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        by_name.setdefault(name, set()).add(overload)
    assert {n: {op.overload for op in index.overloads(n)} for n in by_name} == by_name
    assert len(index) == len(by_name)


def test_r23_every_registered_schema_is_read(resolver):
    """Every schema, `Tensor($0! -> )` included, gives parameters with a name and a kind."""
    library = torch.library.Library("opreplay_r23", "DEF")
    library.define("anonymous_alias(Tensor! c, Tensor a) -> ()")
    index = _C.OperatorIndex()
    assert [p.written for p in index.overloads("opreplay_r23::anonymous_alias")[0].parameters] == [
        True,
        False,
    ]
    read = 0
    for full in torch._C._dispatch_get_all_op_names():
        for operator in index.overloads(full.partition(".")[0]):
            text = operator.schema
            for parameter in operator.parameters:
                assert parameter.name in text
                assert parameter.kind
            read += 1
    assert read > 3000


DTYPES = {
    # R44: the names seen in 118 traces, and those of section 1 of the profiler's encoding.
    "float": torch.float32,
    "Float": torch.float32,
    "c10::BFloat16": torch.bfloat16,
    "BFloat16": torch.bfloat16,
    "int": torch.int32,
    "unsigned int": torch.uint32,
    "long": torch.int64,
    "long int": torch.int64,
    "long long": torch.int64,
    "c10::Half": torch.float16,
    "double": torch.float64,
    "bool": torch.bool,
    "unsigned char": torch.uint8,
    "signed char": torch.int8,
    "char": torch.int8,
    "short int": torch.int16,
    "short": torch.int16,
    "unsigned short": torch.uint16,
    "long unsigned int": torch.uint64,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "c10::Float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "c10::Float8_e8m0fnu": torch.float8_e8m0fnu,
    "c10::Float4_e2m1fn_x2": torch.float4_e2m1fn_x2,
}


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items(), ids=DTYPES)
def test_r44_dtype_names_of_real_traces_map(resolver, name, dtype):
    resolved = resolve(resolver, "aten::detach", tensor(3, type=name))
    assert value(resolved, "self").dtype == dtype


def test_r44_tensor_list_takes_its_dtype_from_a_neighbour(resolver):
    resolved = resolve(
        resolver, "aten::unflatten_dense_tensors", tensor(6, type="c10::Half"), tensors((2,), (4,))
    )
    assert [spec.dtype for spec in value(resolved, "tensors")] == [torch.float16] * 2
    assert any("torch.float16" in a for a in resolved.assumptions)


ENUMS = [(i, d) for i, d in enumerate(["uint8", "int8", "int16", "int32", "int64", "float16"])]
ENUMS += [(6, "float32"), (7, "float64"), (11, "bool"), (15, "bfloat16"), (24, "float8_e4m3fn")]
ENUMS += [(23, "float8_e5m2"), (26, "float8_e4m3fnuz"), (44, "float8_e8m0fnu")]


@pytest.mark.parametrize(("number", "dtype"), ENUMS)
def test_scalar_type_numbers_are_those_of_c10(resolver, number, dtype):
    resolved = resolve(resolver, "aten::view", tensor(64), scalar(str(number)))
    assert value(resolved, "dtype") == TorchValue("dtype", dtype)


def test_r34_layout_memory_format_device_generator_and_string_are_read(resolver):
    made = resolve(
        resolver, "aten::empty", scalars("[2, 2]"), scalar("6"), scalar("0"), dropped(),
        scalar("False"), scalar("2"),
    )  # fmt: skip
    assert value(made, "layout") == TorchValue("layout", "strided")
    assert value(made, "memory_format") == TorchValue("memory_format", "channels_last")
    assert value(made, "device") == TorchValue("device", "")
    drawn = resolve(resolver, "aten::bernoulli_", tensor(4), scalar("0.5"), dropped())
    assert value(drawn, "generator") is None
    gelu = resolve(resolver, "aten::gelu", tensor(4), dropped())
    assert value(gelu, "approximate") == "none"


def test_r21_a_string_default_is_an_assumption_on_the_call(resolver):
    gelu = resolve(resolver, "aten::gelu", tensor(4), dropped())
    assert any("approximate" in a and "strings" in a for a in gelu.assumptions)


def test_r33_tensor_lists_keep_their_shapes(resolver):
    resolved = resolve(resolver, "aten::cat", tensors((2, 3), (4, 3)), scalar("0"))
    assert [spec.dims for spec in value(resolved, "tensors")] == [(2, 3), (4, 3)]


def test_r20_integer_scalars_stay_integers(resolver):
    resolved = resolve(resolver, "aten::add", tensor(2, type="int"), scalar("3"), scalar("2"))
    assert value(resolved, "other") == 3
    assert type(value(resolved, "other")) is int
    assert type(value(resolved, "alpha")) is int


def test_complex_scalars_are_read(resolver):
    resolved = resolve(
        resolver, "aten::fill_", tensor(2, type="c10::complex<float>"), scalar("0.+1.j")
    )
    assert value(resolved, "value") == 1j


def test_r35_missing_strides_are_taken_as_contiguous_and_said(resolver):
    resolved = resolve(resolver, "aten::mm", tensor(2, 3, strides=None), tensor(3, 4, strides=None))
    assert value(resolved, "self").strides == (3, 1)
    assert sum("strides were not recorded" in a for a in resolved.assumptions) == 1


def test_r35_missing_value_takes_the_schemas_default(resolver):
    resolved = resolve(resolver, "aten::add", tensor(2), tensor(2), scalar(None))
    assert value(resolved, "alpha") == 1
    assert any(a.startswith("alpha:") for a in resolved.assumptions)


def test_r35_missing_value_without_default_names_argument_and_flag(resolver):
    skipped = resolver.resolve(call("aten::unsqueeze", tensor(2), scalar(None)))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "metadata_missing"
    assert "argument dim (int)" in skipped.detail
    assert "record_shapes=True" in skipped.detail


def test_a_recorded_scalar_without_value_is_not_taken_as_none(resolver):
    skipped = resolver.resolve(call("aten::clamp", tensor(4), scalar(None), scalar(None)))
    assert skipped.reason == "metadata_missing"
    assert "min" in skipped.detail


def test_call_without_shapes_is_metadata_missing(resolver):
    skipped = resolver.resolve(call("aten::mm", shapes=False))
    assert skipped.reason == "metadata_missing"
    assert "record_shapes=True" in skipped.detail


def test_r36_fewer_arguments_than_the_schema_fill_from_defaults(resolver):
    resolved = resolve(resolver, "aten::empty", scalars("[2]"), scalar("6"), dropped())
    assert len(resolved.arguments) == 6
    assert any("fewer arguments" in a for a in resolved.assumptions)


def test_r42_a_list_of_thirty_is_whole_and_a_longer_one_is_refused(resolver):
    thirty = "[" + ", ".join(["1"] * 30) + "]"
    resolved = resolve(resolver, "aten::view", tensor(1), scalars(thirty))
    assert value(resolved, "size") == (1,) * 30
    skipped = resolver.resolve(call("aten::view", tensor(1), dropped()))
    assert skipped.reason == "argument_lost"
    assert "more than 30" in skipped.detail
    assert "size" in skipped.detail


def test_r48_tensor_lists_without_shapes_are_refused(resolver):
    skipped = resolver.resolve(call("aten::cat", tensors(), scalar("0")))
    assert skipped.reason == "argument_lost"
    assert "tensors" in skipped.detail


def test_indices_of_index_are_lost(resolver):
    skipped = resolver.resolve(call("aten::index", tensor(4), dropped()))
    assert skipped.reason == "argument_lost"
    assert "indices" in skipped.detail


def test_an_undefined_tensor_is_lost(resolver):
    skipped = resolver.resolve(call("aten::cos", dropped()))
    assert skipped.reason == "argument_lost"
    assert "self" in skipped.detail


def test_a_symbolic_size_is_lost(resolver):
    skipped = resolver.resolve(call("aten::view", tensor(8), scalars("[8, j26]")))
    assert skipped.reason == "argument_lost"
    assert "j26" in skipped.detail


def test_as_strided_gets_the_storage_that_it_asks_for(resolver):
    resolved = resolve(
        resolver, "aten::as_strided", tensor(4), scalars("[3, 5]"), scalars("[10, 1]"), scalar("7")
    )
    assert value(resolved, "self").storage_numel == 7 + 2 * 10 + 4 + 1


def test_a_storage_is_stood_in_for_by_one_large_enough(resolver):
    resolved = resolve(
        resolver, "aten::set_", tensor(0), dropped(), scalar("2"), scalars("[3, 4]"),
        scalars("[4, 1]"),
    )  # fmt: skip
    assert value(resolved, "source").storage_numel >= 2 + 12
    assert any("storages" in a for a in resolved.assumptions)


def test_expanded_and_overlapping_strides_are_kept(resolver):
    resolved = resolve(resolver, "aten::relu", tensor(4, 3, strides=(0, 1)))
    assert value(resolved, "self") == TensorSpec(torch.float32, (4, 3), (0, 1), 3)


KINDS = [
    ("AddmmBackward0", "not_an_operator"),
    ("autograd::engine::evaluate_function: AddmmBackward0", "not_an_operator"),
    ("triton_poi_fused_add_0", "not_an_operator"),
    ("Torch-Compiled Region: 0/0", "not_an_operator"),
    ("Optimizer.step#SGD.step", "not_an_operator"),
    ("c10d::allreduce_", "collective"),
    ("record_param_comms", "collective"),
    ("vllm::unified_attention_with_output", "needs_engine_context"),
    ("vllm::moe_forward", "needs_engine_context"),
    ("aten::cudnn_convolution_backward", "operator_unresolved"),
]


@pytest.mark.parametrize(("name", "reason"), KINDS)
def test_what_is_no_operator_says_what_it_is(resolver, name, reason):
    skipped = resolver.resolve(call(name, tensor(2)))
    assert skipped.reason == reason
    assert name in skipped.detail


def test_an_operator_of_another_device_is_backend_missing(resolver):
    skipped = resolver.resolve(
        call("aten::cudnn_convolution_transpose", *[tensor(1, 1, 3, 3)] * 2,
             scalars("[0, 0]"), scalars("[0, 0]"), scalars("[1, 1]"), scalars("[1, 1]"),
             scalar("1"), scalar("False"), scalar("False"), scalar("False"))
    )  # fmt: skip
    assert skipped.reason == "backend_missing"
    assert "CPU" in skipped.detail


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinned_memory_without_an_accelerator_is_backend_missing(resolver):
    skipped = resolver.resolve(
        call("aten::empty", scalars("[2]"), scalar("6"), scalar("0"), dropped(), scalar("True"),
             dropped())
    )  # fmt: skip
    assert skipped.reason == "backend_missing"
    assert resolver.resolve(call("aten::_pin_memory", tensor(2), dropped())).reason == (
        "backend_missing"
    )


def test_registered_with_other_arguments_is_a_mismatch_that_lists_each_schema(resolver):
    skipped = resolver.resolve(call("aten::mm", tensor(2, 2)))
    assert skipped.reason == "schema_mismatch"
    assert "aten::mm(Tensor self, Tensor mat2) -> Tensor: argument mat2 was not recorded" in (
        skipped.detail
    )


def test_allow_mismatch_takes_the_python_operator_and_warns(caplog):
    permissive = Resolver(allow_mismatch=True)
    with caplog.at_level(logging.WARNING):
        resolved = resolve(permissive, "aten::mm", tensor(2, 2))
    assert resolved.schema is None
    assert "schemas were searched" in resolved.assumptions[0]
    assert "aten::mm" in caplog.text
    assert permissive.python_callable(resolved) is torch.ops.aten.mm


def test_kernel_at_autograd_alone_runs_under_no_grad():
    library = torch.library.Library("opreplay_autograd", "DEF")
    library.define("twice(Tensor a) -> Tensor")
    library.impl("twice", lambda a: a + a, "AutogradCPU")
    resolved = resolve(Resolver(), "opreplay_autograd::twice", tensor(2))
    assert resolved.needs_autograd
    assert any("no-grad" in a for a in resolved.assumptions)


def test_an_overload_of_the_trace_that_is_not_here_is_an_assumption(resolver):
    known = replace(call("aten::add", tensor(2), tensor(2), scalar("1")), overload="Tensor")
    (sentence,) = resolver.resolve(replace(known, overload="Tensor2")).assumptions
    assert resolver.resolve(known).assumptions == ()
    assert sentence == (
        "overload 'Tensor2', which the trace names, is not registered here: 'Tensor' was taken"
    )


def test_r38_an_overload_is_read_from_the_dispatcher_once(monkeypatch):
    counted = Resolver()
    looked_up = []
    index = counted._index

    class Counting:
        def overloads(self, name):
            looked_up.append(name)
            return index.overloads(name)

        def refresh(self):
            index.refresh()

    monkeypatch.setattr(counted, "_index", Counting())
    for size in range(1, 6):
        resolved = counted.resolve(call("aten::relu", tensor(size)))
        counted.operator(resolved)
    assert looked_up == ["aten::relu"]


def test_the_operator_of_a_resolved_call_is_its_overload(resolver):
    resolved = resolve(resolver, "aten::add", tensor(2), scalar("3"), scalar("1"))
    assert resolver.operator(resolved).overload == "Scalar"


def write_library(folder, name, namespace):
    (folder / f"{name}.py").write_text(
        textwrap.dedent(
            f"""
            import torch

            library = torch.library.Library("{namespace}", "DEF")
            library.define("twice(Tensor a) -> Tensor")
            library.impl("twice", lambda a: a + a, "CPU")

            def plain(a, factor):
                return a * factor
            """
        )
    )


def test_r3_a_failed_import_is_tried_again_after_a_registration(tmp_path, monkeypatch):
    resolver = Resolver()
    register_namespace("opreplay_r3", "opreplay_r3_missing")
    skipped = resolver.resolve(call("opreplay_r3::twice", tensor(2)))
    assert skipped.reason == "operator_unresolved"
    assert "opreplay_r3_missing" in skipped.detail
    write_library(tmp_path, "opreplay_r3_there", "opreplay_r3")
    monkeypatch.syspath_prepend(tmp_path)
    register_namespace("opreplay_r3", "opreplay_r3_there")
    assert resolve(resolver, "opreplay_r3::twice", tensor(2)).schema.startswith("opreplay_r3::")


def test_r4_a_plain_function_is_called_with_a_warning(tmp_path, monkeypatch, caplog):
    write_library(tmp_path, "opreplay_r4_library", "opreplay_r4")
    monkeypatch.syspath_prepend(tmp_path)
    register_namespace("opreplay_r4", "opreplay_r4_library")
    resolver = Resolver()
    with caplog.at_level(logging.WARNING):
        resolved = resolve(resolver, "opreplay_r4::plain", tensor(2), scalar("3"))
    assert resolved.schema is None
    assert [a.value for a in resolved.arguments][1] == 3
    assert "opreplay_r4::plain" in caplog.text
    assert "0 schemas were searched" in caplog.text
    assert resolver.python_callable(resolved)(torch.ones(2), 3).tolist() == [3, 3]


def test_a_namespace_that_only_a_trace_names_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "opreplay_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    skipped = Resolver().resolve(call("opreplay_evil::run", tensor(2)))
    assert skipped.reason == "operator_unresolved"
    assert "--import" in skipped.detail


def test_import_option_registers_operators(tmp_path, monkeypatch):
    write_library(tmp_path, "opreplay_import_library", "opreplay_imported")
    monkeypatch.syspath_prepend(tmp_path)
    resolver = Resolver(imports=["opreplay_import_library"])
    assert resolve(resolver, "opreplay_imported::twice", tensor(2)).overload == ""


def test_import_option_of_a_missing_module_raises():
    with pytest.raises(ImportError, match="opreplay_no_such_module"):
        Resolver(imports=["opreplay_no_such_module"])


@pytest.mark.parametrize("namespace", ["", "a::b", "1x"])
def test_register_namespace_refuses_what_is_no_identifier(namespace):
    with pytest.raises(ValueError, match="identifier"):
        register_namespace(namespace, "module")


def test_register_namespace_wants_a_module():
    with pytest.raises(ValueError, match="at least one module"):
        register_namespace("opreplay_nothing")


def test_r22_a_renamed_operator_says_its_new_name():
    library = torch.library.Library("_rocm_C", "DEF")
    library.define("wvSplitK(Tensor in_a, Tensor in_b, Tensor? in_bias, int CuCount) -> Tensor")
    library.impl("wvSplitK", lambda a, b, _bias, _count: a @ b, "CPU")
    resolved = resolve(
        Resolver(), "_rocm_C::wvSpltK", tensor(2, 2), tensor(2, 2), dropped(), scalar("304")
    )
    assert resolved.op == "_rocm_C::wvSpltK"
    assert resolved.resolved_op == "_rocm_C::wvSplitK"
    assert "_rocm_C::wvSpltK is called _rocm_C::wvSplitK here" in resolved.assumptions


CACHE_DTYPES = [
    ("c10::BFloat16", "auto"),
    ("unsigned char", "fp8"),
    ("c10::Float8_e4m3fn", "fp8"),
    ("c10::Float8_e5m2", "fp8_e5m2"),
    ("signed char", "int8"),
]


@pytest.mark.parametrize(("cache", "text"), CACHE_DTYPES)
def test_kv_cache_dtype_is_told_by_the_cache(cache, text):
    library = torch.library.Library("opreplay_cache", "FRAGMENT")
    library.define(f"store_{text}(Tensor key, Tensor! key_cache, str kv_cache_dtype) -> ()")
    library.impl(f"store_{text}", lambda *_: None, "CPU")
    resolved = resolve(
        Resolver(), f"opreplay_cache::store_{text}", tensor(2), tensor(8, type=cache), dropped()
    )
    assert value(resolved, "kv_cache_dtype") == text


def test_instruction_set_is_asked_of_this_machine(monkeypatch):
    library = torch.library.Library("opreplay_isa", "DEF")
    library.define("attend(Tensor key_cache, str isa) -> ()")
    library.impl("attend", lambda *_: None, "CPU")

    def isa(amx, *dims):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        found = resolve(
            Resolver(), "opreplay_isa::attend", tensor(*dims, type="c10::BFloat16"), dropped()
        )
        return value(found, "isa")

    assert isa(True, 4, 2, 128, 64) == "amx"
    assert isa(False, 4, 2, 128, 64) == "vec"
    assert isa(False, 4, 2, 16, 64) == "vec16"
    assert isa(True, 4, 2, 128, 80) == "vec16"


def test_resolving_imports_no_library_of_a_known_namespace_until_it_is_met():
    code = (
        "import sys; from opreplay.resolve import Resolver; "
        "Resolver(); print('vllm' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_an_unknown_type_is_lost_with_its_name(resolver):
    odd = RecordedArgument("c10::Quaternion", (2,), (1,), "")
    skipped = resolver.resolve(call("aten::relu", odd))
    assert skipped.reason == "argument_lost"
    assert "c10::Quaternion" in skipped.detail


def test_r15_a_name_that_only_torchscript_registers_is_unresolved(resolver):
    scripted = {schema.name for schema in torch._C._jit_get_all_schemas()}
    dispatched = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    names = sorted(n for n in scripted - dispatched if n.startswith("aten::"))
    assert names
    for name in names:
        assert resolver.resolve(call(name, tensor(2))).reason == "operator_unresolved"


def test_r37_identical_events_are_resolved_once(tmp_path, monkeypatch):
    events = [op("aten::relu", dims=[[4]], types=["float"], ts=10 * i) for i in range(50)]
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    counted = Resolver()
    resolved = []
    find = counted.resolve
    monkeypatch.setattr(counted, "resolve", lambda c: resolved.append(c.name) or find(c))
    groups = trace.groups()
    for group in groups:
        counted.resolve(group.call)
    assert resolved == ["aten::relu"]
    assert groups[0].count == 50
