import pytest
import torch
from kineto_events import SHARED_TRACES, write

from opreplay.inputs import Inputs, make_inputs
from opreplay.plan import planned, resolved
from opreplay.resolve.call import ResolvedCall, TensorSpec, TorchValue
from opreplay.resolve.resolver import Resolver
from opreplay.trace import RecordedArgument, Selection, TraceError, read_trace

ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
ADD_INPLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
MM_OUT = "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)"
ZEROS = (
    "aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None) -> Tensor"
)
INDEX = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"


def tensor(storage, offset=0, tensor_id=None):
    """A tensor's value: its identity, its elements don't matter here."""
    return [storage + 100 if tensor_id is None else tensor_id, storage, offset, 4, 4, "cuda:0"]


def node(id, name, *inputs, parent=1, schema="", tid=1, scope=0, strides=None):
    """A node of schema 1.1.1; `inputs` are values, shapes and types."""
    values, shapes, types = (list(part) for part in zip(*inputs, strict=True)) if inputs else (
        [], [], [],
    )  # fmt: skip
    fields = {"values": values, "shapes": shapes, "types": types}
    if strides is not None:
        fields["strides"] = strides
    attributes = {"tid": tid, "scope": scope, "op_schema": schema, "kernel_backend": ""}
    return {
        "id": id, "name": name, "ctrl_deps": parent, "inputs": fields,
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attributes.items()],
    }  # fmt: skip


def old_node(id, name, *inputs, parent=1, schema=""):
    """A flat node of schema 1.0.1."""
    values, shapes, types = (list(part) for part in zip(*inputs, strict=True))
    return {
        "id": id, "name": name, "parent": parent, "tid": 1, "scope": 0, "op_schema": schema,
        "inputs": values, "input_shapes": shapes, "input_types": types,
    }  # fmt: skip


def trace_of(tmp_path, *nodes, schema="1.1.1-chakra.0.0.4"):
    return read_trace(write(tmp_path / "et.json", {"schema": schema, "nodes": list(nodes)}))


def call_of(tmp_path, *inputs, name, schema="", **rest):
    (call,) = trace_of(tmp_path, node(2, name, *inputs, schema=schema, **rest)).calls()
    return call


def resolve(call):
    found = Resolver().resolve(call)
    assert isinstance(found, ResolvedCall), found
    return found


def values_of(found):
    return {argument.name: argument.value for argument in found.arguments}


FLOAT = "Tensor(float)"
TWO = (tensor(7), [2, 3], FLOAT), (tensor(8), [2, 3], FLOAT), (1, [], "Int")


def test_the_overload_comes_from_the_schema(tmp_path):
    call = call_of(tmp_path, *TWO, name="aten::add", schema=ADD)
    assert call.overload == "Tensor"
    assert resolve(call).overload == "Tensor"


def test_the_default_overload_is_told_from_an_unknown_one(tmp_path):
    zeros = [([2], [[]], "GenericList[Int]"), *[("<None>", [], "None")] * 4]
    assert call_of(tmp_path, *zeros, name="aten::zeros", schema=ZEROS).overload == ""
    assert call_of(tmp_path, *zeros, name="aten::zeros").overload is None


def test_a_recorded_overload_beats_one_that_fits_better(tmp_path):
    # aten::sum.dim_IntList also takes this call; only the schema tells that it was called.
    schema = (
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, "
        "ScalarType? dtype=None) -> Tensor"
    )
    inputs = [
        (tensor(7), [2], FLOAT), ("<None>", [], "None"), (False, [], "Bool"),
        ("<None>", [], "None"),
    ]  # fmt: skip
    found = resolve(call_of(tmp_path, *inputs, name="aten::sum", schema=schema))
    assert found.overload == "dim_IntList"
    assert found.assumptions == ("strides were not recorded, tensors are taken as contiguous",)


def test_a_flat_node_of_schema_1_0_1_reads_like_a_newer_one(tmp_path):
    (old,) = trace_of(tmp_path, old_node(2, "aten::add", *TWO, schema=ADD), schema="1.0.1").groups()
    (new,) = trace_of(tmp_path, node(2, "aten::add", *TWO, schema=ADD)).groups()
    assert old.signature == new.signature
    assert old.call.arguments == (
        RecordedArgument("float", (2, 3), None, ""),
        RecordedArgument("float", (2, 3), None, ""),
        RecordedArgument("Scalar", (), (), "1"),
    )


def test_recorded_strides_are_kept(tmp_path):
    call = call_of(tmp_path, *TWO, name="aten::add", schema=ADD, strides=[[1, 2], [3, 1], []])
    assert values_of(resolve(call))["self"] == TensorSpec(torch.float32, (2, 3), (1, 2), 6)


def test_values_keep_their_kinds(tmp_path):
    inputs = [
        (3, [], "Int"), (1, [], "Double"), (False, [], "Bool"), (None, [], "Object"),
        ([1, 2], [[], []], "GenericList[Int,Int]"), ([], [], "GenericList[]"),
        ([True, False], [[], []], "GenericList[Bool,Bool]"), ("<None>", [], "None"),
        ("cuda:0", [], "Device"), ("mean", [], "String"),
    ]  # fmt: skip
    call = call_of(tmp_path, *inputs, name="my::op")
    assert [(a.type, a.value) for a in call.arguments] == [
        ("Scalar", "3"), ("Scalar", "1.0"), ("Scalar", "False"), ("", ""),
        ("ScalarList", "[1, 2]"), ("ScalarList", "[]"), ("ScalarList", "[True, False]"),
        ("None", ""), ("Device", "cuda:0"), ("String", "mean"),
    ]  # fmt: skip


def test_a_device_and_none_are_no_guesses(tmp_path):
    inputs = [
        ([2], [[]], "GenericList[Int]"), (6, [], "Int"), ("<None>", [], "None"),
        ("cuda:0", [], "Device"), (False, [], "Bool"),
    ]  # fmt: skip
    found = resolve(call_of(tmp_path, *inputs, name="aten::zeros", schema=ZEROS))
    assert found.assumptions == ()
    assert values_of(found) == {
        "size": (2,), "dtype": TorchValue("dtype", "float32"), "layout": None,
        "device": TorchValue("device", ""), "pin_memory": False,
    }  # fmt: skip


def test_a_list_of_tensors_keeps_each_dtype_and_undefined_ones(tmp_path):
    nothing = "Tensor(nullptr (uninitialized))"
    inputs = [
        (tensor(7), [4, 5], FLOAT),
        ([tensor(0), tensor(8)], [[], [3]], f"GenericList[{nothing},Tensor(long)]"),
    ]
    found = resolve(call_of(tmp_path, *inputs, name="aten::index", schema=INDEX))
    assert values_of(found)["indices"] == (None, TensorSpec(torch.int64, (3,), (1,), 3))


def test_tensors_on_one_storage_alias_again(tmp_path):
    inputs = [
        (tensor(7, 0), [4], FLOAT), (tensor(7, 2, tensor_id=1), [4], FLOAT), (1, [], "Int"),
    ]  # fmt: skip
    call = call_of(tmp_path, *inputs, name="aten::add_", schema=ADD_INPLACE)
    made = make_inputs(resolve(call), device="cpu", seed=0, memory_budget=1 << 20)
    assert isinstance(made, Inputs)
    one, other, _ = made.arguments
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert (one.storage_offset(), other.storage_offset()) == (0, 2)
    assert torch.equal(one[2:], other[:2])
    assert made.bytes == 6 * 4


def test_tensors_on_storages_of_their_own_do_not_alias(tmp_path):
    call = call_of(tmp_path, *TWO, name="aten::add", schema=ADD)
    made = make_inputs(resolve(call), device="cpu", seed=0, memory_budget=1 << 20)
    one, other, _ = made.arguments
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    assert made.bytes == 2 * 6 * 4


def test_a_plan_keeps_the_aliasing(tmp_path):
    inputs = [(tensor(7), [4], FLOAT), (tensor(7, 4), [4], FLOAT), (1, [], "Int")]
    found = resolve(call_of(tmp_path, *inputs, name="aten::add_", schema=ADD_INPLACE))
    again = resolved("aten::add_", planned(found))
    assert [values_of(again)[name].storage for name in ("self", "other")] == [(0, 0), (0, 4)]


def test_calls_are_equal_whatever_the_ids_of_their_tensors(tmp_path):
    shared = [(tensor(7), [4], FLOAT), (tensor(7, 4), [4], FLOAT), (1, [], "Int")]
    renamed = [(tensor(9), [4], FLOAT), (tensor(9, 4), [4], FLOAT), (1, [], "Int")]
    apart = [(tensor(7), [4], FLOAT), (tensor(8), [4], FLOAT), (1, [], "Int")]
    cases = enumerate((shared, renamed, apart), start=2)
    groups = trace_of(tmp_path, *(node(id, "aten::add", *case) for id, case in cases)).groups()
    assert [group.count for group in groups] == [2, 1]


def test_nesting_and_ranges_come_from_the_parents(tmp_path):
    trace = trace_of(
        tmp_path,
        node(1, "[pytorch|profiler|execution_trace|process]", parent=1, scope=7),
        node(2, "## forward ##", parent=1, scope=7),
        node(3, "aten::linear", parent=2),
        node(4, "aten::addmm", parent=3),
        node(5, "aten::relu", parent=1),
    )
    assert [(c.name, c.parent, c.leaf, c.step) for c in trace.calls() if "aten" in c.name] == [
        ("aten::linear", None, False, "## forward ##"),
        ("aten::addmm", "aten::linear", True, "## forward ##"),
        ("aten::relu", None, True, None),
    ]
    assert [
        g.call.name for g in trace.groups(Selection(scope="forward", level="leaf", match="aten"))
    ] == ["aten::addmm"]


def test_times_are_zero_and_that_is_said(tmp_path):
    trace = trace_of(tmp_path, node(2, "aten::add", *TWO, schema=ADD))
    (group,) = trace.groups()
    assert (group.host.total, group.host.self_total, group.device) == (0.0, 0.0, None)
    assert any("holds no times" in sentence for sentence in trace.missing)


def test_inputs_that_do_not_fit_together_are_unrecorded(tmp_path):
    broken = node(2, "aten::add", *TWO, schema=ADD)
    broken["inputs"]["types"].pop()
    (group,) = trace_of(tmp_path, broken).groups()
    assert group.call.arguments is None
    assert "do not fit together" in group.unrecorded


@pytest.mark.parametrize(
    "broken",
    [7, {}, {"id": 1}, {**node(2, "x"), "id": "two"}, {**node(2, "x"), "id": 1 << 64},
     {**node(2, "x"), "inputs": []}, {**node(2, "x"), "attrs": 3}],
)  # fmt: skip
def test_a_malformed_node_is_refused(tmp_path, broken):
    with pytest.raises(TraceError, match=r"node 0 of the Execution Trace is malformed"):
        trace_of(tmp_path, broken)


def test_an_execution_trace_without_nodes_is_refused(tmp_path):
    with pytest.raises(TraceError, match="holds no nodes"):
        trace_of(tmp_path)


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize(
    ("name", "nodes"), [("param__et-gpt2-1.1.0", 27156), ("param__et-resnet-1gpu-1.1.1", 14392)]
)
def test_shared_execution_traces_are_read_whole(name, nodes):
    trace = read_trace(SHARED_TRACES / f"{name}.json.gz")
    assert len(trace) == nodes  # PROVENANCE.md
    calls = [group.call for group in trace.groups(Selection(match="^aten::"))]
    assert all(call.arguments is not None for call in calls)
    assert all(call.overload is not None for call in calls)
