import threading
from types import SimpleNamespace

import pytest
import torch
from kineto_events import op, write

import opreplay
from opreplay import _C
from opreplay.inputs import Inputs, make_inputs
from opreplay.resolve import Resolver
from opreplay.trace import Skipped
from opreplay.trace.kept_values import add_values


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_recorded_model_has_all_that_replay_needs(tmp_path, name):
    with opreplay.record(tmp_path / name):
        torch.mm(torch.ones(2, 3), torch.ones(4, 3).t())
    trace = opreplay.read_trace(tmp_path / name)
    (call,) = trace.calls("aten::mm")
    assert [(a.type, a.dims, a.strides) for a in call.arguments] == [
        ("float", (2, 3), (3, 1)),
        ("float", (3, 4), (1, 3)),
    ]
    assert trace.missing == ()


def test_nothing_is_written_where_the_block_fails(tmp_path):
    with pytest.raises(RuntimeError, match="stop"), opreplay.record(tmp_path / "out.json"):
        raise RuntimeError("stop")
    assert not (tmp_path / "out.json").exists()


def test_a_name_with_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.json"), opreplay.record(tmp_path / "o.pt"):
        pass


def recorded(tmp_path, run, keep_values=1000):
    path = tmp_path / "kept.json.gz"
    with opreplay.record(path, keep_values=keep_values):
        run()
    return opreplay.read_trace(path)


def inputs_of(trace, op):
    (call,) = trace.calls(op)
    found = Resolver().resolve(call)
    assert not isinstance(found, Skipped), found
    made = make_inputs(found, device="cpu", seed=0, memory_budget=1 << 30)
    assert isinstance(made, Inputs), made
    return made


def test_the_values_that_were_kept_are_the_values_that_are_replayed(tmp_path):
    indices = torch.tensor([[5, 0, 6], [6, 1, 1]])
    trace = recorded(tmp_path, lambda: torch.nn.functional.embedding(indices, torch.ones(7, 4)))
    made = inputs_of(trace, "aten::embedding")
    assert made.arguments[1].equal(indices)
    assert made.recipe == "recorded values of indices"


def test_values_of_every_stride_and_dtype_are_kept(tmp_path):
    one = torch.arange(6, dtype=torch.int32).reshape(2, 3).t()
    other = torch.tensor([3, -1], dtype=torch.int16).expand(3, 2)
    trace = recorded(tmp_path, lambda: torch.bitwise_and(one, other))
    made = inputs_of(trace, "aten::bitwise_and")
    for value, expected in zip(made.arguments, (one, other), strict=True):
        assert value.equal(expected)
        assert (value.dtype, value.stride()) == (expected.dtype, expected.stride())


def test_the_indices_that_the_profiler_drops_come_back(tmp_path):
    table, rows, mask = torch.ones(5, 4, 3), torch.tensor([4, 0]), torch.tensor([True, False, True])
    trace = recorded(tmp_path, lambda: (table[rows, 1:], table[:, :, mask]))
    first, second = trace.calls("aten::index")
    assert [(a.dims, a.elements) for a in first.arguments[1:]] == [(((2,),), ("long int",))]
    for call, expected in ((first, table[rows, 1:]), (second, table[:, :, mask])):
        made = make_inputs(Resolver().resolve(call), device="cpu", seed=0, memory_budget=1 << 30)
        assert torch.ops.aten.index(*made.arguments).shape == expected.shape


def test_each_call_has_its_own_values_and_calls_alike_are_one_signature(tmp_path):
    weight = torch.ones(9, 2)

    def run():
        for index in ([1, 2], [3, 4], [5, 6]):
            torch.nn.functional.embedding(torch.tensor(index), weight)

    trace = recorded(tmp_path, run)
    contents = [call.arguments[1].contents for call in trace.calls("aten::embedding")]
    assert contents == [((1, 2),), ((3, 4),), ((5, 6),)]
    assert [
        group.count for group in trace.groups(opreplay.Selection(ops=("aten::embedding",)))
    ] == [3]


def test_calls_of_other_threads_keep_their_own_values(tmp_path):
    weight = torch.ones(9, 2)

    def look_up(index):
        torch.nn.functional.embedding(torch.tensor([index]), weight)

    def run():
        thread = threading.Thread(target=look_up, args=(7,))
        thread.start()
        thread.join()
        look_up(3)

    trace = recorded(tmp_path, run)
    found = {call.arguments[1].contents for call in trace.calls("aten::embedding")}
    assert ((3,),) in found  # the profiler may leave out threads that it doesn't know
    assert found <= {((3,),), ((7,),)}


def test_values_that_are_too_many_are_left_to_the_recipe(tmp_path):
    indices = torch.zeros(11, dtype=torch.int64)
    trace = recorded(
        tmp_path, lambda: torch.nn.functional.embedding(indices, torch.ones(7, 4)), keep_values=10
    )
    made = inputs_of(trace, "aten::embedding")
    assert made.recipe != "recorded values of indices"
    assert made.arguments[1].any()


def test_values_are_not_used_beside_integers_that_were_not_kept(tmp_path):
    data, index = torch.zeros(50, dtype=torch.int64), torch.tensor([3, 4])
    trace = recorded(tmp_path, lambda: data.gather(0, index), keep_values=10)
    made = inputs_of(trace, "aten::gather")
    (sentence,) = [a for a in made.assumptions if "recorded values" in a]
    assert sentence == "recorded values of index not used: those of self were not kept"


def test_a_plan_holds_no_values(tmp_path):
    indices = torch.tensor([6, 5])
    trace = recorded(tmp_path, lambda: torch.nn.functional.embedding(indices, torch.ones(7, 4)))
    plan = opreplay.make_plan(trace, opreplay.Selection(ops=("aten::embedding",)))
    opreplay.write_plan(plan, tmp_path / "x.plan.json")
    assert "contents" not in (tmp_path / "x.plan.json").read_text()
    assert opreplay.replay(tmp_path / "x.plan.json").rows[0].status == "ok"


def test_values_that_fit_no_call_are_told_and_left_out(tmp_path, caplog):
    path = write(tmp_path / "t.json", {"traceEvents": [op(types=["long int"], dims=[[2]], tid=1)]})

    def kept(**change):
        fields = {"thread": 1, "op": "aten::mm", "occurrence": 0, "place": 0, "is_list": False}
        tensor = SimpleNamespace(type="long int", sizes=[2], values=[8, 9])
        return SimpleNamespace(**{**fields, "tensors": [tensor], **change})

    wrong = [
        kept(thread=2),
        kept(op="aten::add"),
        kept(occurrence=1),
        kept(place=1),
        kept(tensors=[SimpleNamespace(type="long int", sizes=[1], values=[8])]),
    ]
    add_values(path, [*wrong, kept()])
    (call,) = opreplay.read_trace(path).calls()
    assert call.arguments[0].contents == ((8, 9),)
    assert "values of 5 arguments belong to no call" in caplog.text


def test_values_are_kept_once_at_a_time(tmp_path):
    with (
        pytest.raises(RuntimeError, match="being kept already"),
        opreplay.record(tmp_path / "a.json", keep_values=1),
    ):
        _C.start_keeping_values(1)
    with (
        pytest.raises(ValueError, match="must not be negative"),
        opreplay.record(tmp_path / "a.json", keep_values=-1),
    ):
        pass
