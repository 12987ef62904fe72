"""Index tensors that the profiler drops, told by the operators inside: torch's own recordings."""

import pytest
import torch
from kineto_events import SHARED_TRACES, op, trace_of

from opreplay import Selection, make_plan, replay
from opreplay.options import ReplayOptions
from opreplay.stat import TimingOptions
from opreplay.trace import RecordedArgument, read_trace, signature_of

HERE = ReplayOptions(isolation=False, device="cpu", timing=TimingOptions(time_s=0.002, cold=False))
X = torch.arange(240.0).view(10, 6, 4)
ROWS, COLUMNS = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])
MASK = torch.arange(10) % 3 == 0
PLANE = torch.arange(60).view(10, 6) % 7 == 0


def recorded(tmp_path, body):
    with torch.profiler.profile(record_shapes=True) as profiler:
        body()
    path = tmp_path / "recorded.json"
    profiler.export_chrome_trace(str(path))
    return read_trace(path)


def indices_of(trace, name="aten::index"):
    (call,) = trace.calls(name)
    return call.arguments[1]


TOLD = {
    "rows": (lambda: X[ROWS], ((3,),), ("long int",), None),
    "columns": (lambda: X[:, COLUMNS], ((), (3,)), ("None", "long int"), None),
    "pairs": (lambda: X[ROWS, COLUMNS], ((3,), (3,)), ("long int",) * 2, None),
    "int32": (lambda: X[ROWS.int()], ((3,),), ("int",), None),
    "matrix": (lambda: X[:, :, COLUMNS.view(3, 1)], ((), (), (3, 1)),
               ("None", "None", "long int"), None),
    "mask": (lambda: X[MASK], ((10,),), ("bool",), 4),
    "mask of a plane": (lambda: X[PLANE], ((10, 6),), ("bool",), 9),
    "mask of the second dim": (lambda: X[:, MASK[:6]], ((), (6,)), ("None", "bool"), 2),
}  # fmt: skip


@pytest.mark.parametrize(("body", "dims", "types", "true"), TOLD.values(), ids=TOLD)
def test_what_runs_inside_an_index_tells_its_indices(tmp_path, body, dims, types, true):
    found = indices_of(recorded(tmp_path, body))
    assert (found.type, found.dims, found.elements) == ("TensorList", dims, types)
    assert (found.recovered, found.true_elements) == (True, true)


OPEN = {
    "broadcast": lambda: X[ROWS.view(3, 1), COLUMNS],
    "apart": lambda: X[ROWS, :, COLUMNS],
    "mask and rows": lambda: X[MASK, torch.arange(4)],
    "int32 and int64": lambda: X[ROWS.int(), COLUMNS],
}


@pytest.mark.parametrize("body", OPEN.values(), ids=OPEN)
def test_indices_that_fit_in_several_ways_stay_lost(tmp_path, body):
    trace = recorded(tmp_path, body)
    assert indices_of(trace).type == ""
    (row,) = replay(trace, Selection(("aten::index",)), options=HERE).rows
    assert row.reason == "argument_lost"


@pytest.mark.parametrize("accumulate", [False, True])
def test_what_runs_inside_an_index_put_tells_its_indices(tmp_path, accumulate):
    def body():
        torch.ops.aten.index_put_(X.clone(), [None, COLUMNS], torch.ones(10, 3, 4), accumulate)

    trace = recorded(tmp_path, body)
    for name in ("aten::index_put_", "aten::_index_put_impl_"):
        found = indices_of(trace, name)
        assert (found.dims, found.elements) == (((), (3,)), ("None", "long int"))


def test_a_mask_of_the_recorded_size_lets_the_recorded_number_through(tmp_path):
    trace = recorded(tmp_path, lambda: X[PLANE])
    chosen = Selection(("aten::index",))
    plan = make_plan(trace, chosen, options=HERE)

    for source in (trace, plan):
        (row,) = replay(source, chosen, options=HERE).rows
        assert row.status == "ok"
        assert row.recipe == "mask true for 9 elements"
        assert any("the profiler drops it" in sentence for sentence in row.assumptions)


def test_the_signature_is_that_of_what_the_profiler_wrote(tmp_path):
    trace = recorded(tmp_path, lambda: (X[ROWS], X[ROWS[:2]], X[MASK], X.view(60, 4)[ROWS]))
    first, second = trace.groups(Selection(("aten::index",)))
    (plane, indices) = first.call.arguments
    dropped = RecordedArgument("", (), (), "")
    assert (first.count, second.count) == (3, 1)
    assert indices.recovered
    assert first.signature == signature_of("aten::index", (plane, dropped))


def inside(sizes, strides):
    """An index of 4 x 4 whose restrided source has sizes and strides, as text."""
    vector = {"types": ["long int"], "dims": [[4]], "strides": [[1]], "values": [""]}
    return [
        op("aten::index", ts=0, dur=50, types=["float", ""], dims=[[4, 4], []],
           strides=[[4, 1], []], values=["", ""]),
        op("aten::as_strided", ts=10, dur=5, types=["float", "ScalarList", "ScalarList"],
           dims=[[4, 4], [], []], strides=[[4, 1], [], []], values=["", sizes, strides]),
        op("aten::reshape", ts=20, dur=5, **vector),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "strides", "elements"),
    [
        ("[4, 4]", "[0, 1]", ("long int",)),
        ("[4, 4]", "[4, 0]", ("None", "long int")),
        ("[4, 4]", "[4, 1]", None),
        ("[5, 4]", "[0, 1]", None),
        ("", "[0, 1]", None),
        ("4, 4", "[0, 1]", None),
        ("4", "[0, 1]", None),
    ],
)
def test_the_dim_is_the_one_with_stride_0_and_the_size_of_the_index(
    tmp_path, sizes, strides, elements
):
    assert indices_of(trace_of(tmp_path, *inside(sizes, strides))).elements == elements


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="no shared traces")
def test_indices_of_the_public_traces_are_all_told():
    lost = found = 0
    for path in SHARED_TRACES.glob("*.json.gz"):
        for group in read_trace(path).groups(Selection(match="^aten::_?(unsafe_)?index(_put)?")):
            if group.call.name.startswith("aten::index_"):
                continue
            indices = (group.call.arguments or ())[1:2]
            lost += any(not one.type for one in indices)
            found += any(one.recovered for one in indices)
    assert (lost, found > 0) == (0, True)
