"""Plans: resolved calls on file, the same calls and bits without the trace."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kineto_events import TINY_TRACE, kernel, launch, op, trace_of

import opreplay
from opreplay.attempt import Attempt
from opreplay.isolation import Died, TimedOut, WorkerError
from opreplay.options import ReplayOptions
from opreplay.plan import (
    Plan,
    PlannedOperator,
    PlannedRecipe,
    PlannedTensor,
    planned,
    resolved,
)
from opreplay.plan_file import PlanError, is_plan, read_plan, write_plan
from opreplay.recipes import find_recipe, recipe, remove_recipe
from opreplay.recipes.parameters import Parameter
from opreplay.replay import _planned_call, make_plan, replay
from opreplay.resolve.call import Argument, ResolvedCall, TensorSpec, TorchValue
from opreplay.stat import TimingOptions
from opreplay.trace import Selection, Skipped, read_trace
from opreplay.trace.steps import parse_step

SCHEMA = Path(__file__).parents[2] / "docs" / "plan.schema.json"
HERE = ReplayOptions(isolation=False, device="cpu", timing=TimingOptions(time_s=0.002, cold=False))
MATRICES = {"types": ["float"] * 2, "dims": [[2, 3], [3, 4]], "strides": [[3, 1], [4, 1]]}
VECTOR = {"types": ["float"], "dims": [[4]], "strides": [[1]]}


def every_kind_of_value():
    value = (
        TensorSpec(torch.bfloat16, (2, 3), (0, 1), 3),
        TorchValue("dtype", "float8_e4m3fn"),
        (TensorSpec(torch.int64, (), (), 1), None),
        (1, 2),
        2**63 - 1,
        1.0,
        math.inf,
        complex(1.5, -math.inf),
        True,
        "none",
        None,
    )
    arguments = tuple(
        Argument(f"a{index}", "Any", one, index == 0, index == 1) for index, one in enumerate(value)
    )
    return ResolvedCall("x::y", "x::z", "out", "x::z()", arguments, ("guess",), (("x::z", "no"),))


def planned_trace(tmp_path):
    """A plan of two matrix products inside a step, an unknown operator and a nested one."""
    trace = trace_of(
        tmp_path,
        {**op("step", ts=0, dur=100, cat="user_annotation")},
        op("aten::mm", ts=10, dur=10, External_id=1, **MATRICES),
        launch(ts=12, dur=1, correlation=5),
        kernel("gemm", ts=14, dur=3, correlation=5),
        op("nobody::op", ts=30, dur=10, **VECTOR),
        op("aten::relu", ts=200, dur=50, **VECTOR),
        op("aten::clamp_min", ts=210, dur=10, types=["float", "Scalar"], dims=[[4], []],
           strides=[[1], []], values=["", "0"]),
    )  # fmt: skip
    return make_plan(trace, options=HERE)


CHOSEN = PlannedRecipe("mine.fill", (("mine.s", 0.5), ("mine.n", 3), ("mine.how", "zipf")))


def every_kind_of_call(tmp_path):
    """A call of a plan with every field filled."""
    source = planned_trace(tmp_path).calls[0]
    fields = {name: getattr(source, name) for name in source.__slots__}
    step = parse_step("prefill[bs=2 tok=30 ctx=[10, 20]]")
    operator = planned(every_kind_of_value(), CHOSEN, {"a0": "mine::make"})
    return type(source)(**{**fields, "outcome": operator, "batch": step})


def write_fields(tmp_path, change):
    """Writes a plan after `change` was made to its JSON."""
    path = tmp_path / "x.plan.json"
    write_plan(planned_trace(tmp_path), path)
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    return path


def test_every_kind_of_value_survives_the_file(tmp_path):
    path = tmp_path / "x.plan.json"
    call = every_kind_of_call(tmp_path)
    write_plan(Plan((call,)), path)

    (read,) = read_plan(path).calls

    assert read == call
    assert read.batch.annotation == "prefill[bs=2 tok=30 ctx=[10, 20]]"
    assert read.outcome.recipe == CHOSEN
    assert [a.producer for a in read.outcome.arguments[:2]] == ["mine::make", None]
    given = {"mine.s": "0.5", "mine.n": "3", "mine.how": "zipf"}
    assert resolved("x::y", read.outcome) == replace(every_kind_of_value(), recipe_parameters=given)
    assert type(read.outcome.arguments[5].value) is float


def test_a_plan_file_holds_the_calls_of_the_plan(tmp_path):
    plan = planned_trace(tmp_path)
    write_plan(plan, tmp_path / "x.plan.json")

    assert read_plan(tmp_path / "x.plan.json") == plan


def test_a_planned_call_keeps_what_the_trace_says_of_it(tmp_path):
    matmul, unknown, relu, clamp = planned_trace(tmp_path).calls

    assert (matmul.op, matmul.step, matmul.parent, matmul.leaf) == ("aten::mm", "step", None, True)
    assert (matmul.host.median, matmul.device.median) == (10, 3)
    assert matmul.kernels == (("gemm", 1),)
    assert matmul.outcome.arguments[0].value == PlannedTensor("float32", (2, 3), (3, 1), 6)
    assert unknown.outcome.reason == "operator_unresolved"
    assert (relu.leaf, clamp.parent) == (False, "aten::relu")


def test_a_plan_written_here_follows_its_schema(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    write_plan(planned_trace(tmp_path), tmp_path / "x.plan.json")
    write_plan(Plan((every_kind_of_call(tmp_path),)), tmp_path / "every.plan.json")
    schema = json.loads(SCHEMA.read_text())

    for name in ("x", "every"):
        jsonschema.validate(json.loads((tmp_path / f"{name}.plan.json").read_text()), schema)


@pytest.mark.skipif(not TINY_TRACE.exists(), reason="needs the recorded trace")
def test_a_plan_replays_to_the_signatures_of_its_trace(tmp_path):
    write_plan(make_plan(TINY_TRACE, options=HERE), tmp_path / "x.plan.json")

    of_plan = replay(tmp_path / "x.plan.json", options=HERE)
    of_trace = replay(TINY_TRACE, options=HERE)

    def identity(report):
        return [
            (row.signature, row.op, row.count, row.reason, row.schema, row.assumptions, row.host)
            for row in report.rows
        ]

    assert identity(of_plan) == identity(of_trace)


def _reads_sizes_alone(op):
    recipe = find_recipe(op)
    return recipe is not None and recipe.name.endswith("aten_views.reads_sizes")


@pytest.mark.skipif(not TINY_TRACE.exists(), reason="needs the recorded trace")
def test_a_plan_gives_the_input_bits_of_its_trace(tmp_path):
    write_plan(make_plan(TINY_TRACE, options=HERE), tmp_path / "x.plan.json")
    attempt = Attempt(HERE, device="cpu")

    def read_tensors(job):
        """Tensors that the operator reads: the others are not filled."""
        found = attempt.resolve(job)
        if isinstance(found, ResolvedCall) and _reads_sizes_alone(found.op):
            return []
        made = found if isinstance(found, Skipped) else attempt.prepare(found)
        if isinstance(made, Skipped):
            return []
        pairs = zip(found.arguments, made.inputs.arguments, strict=True)
        return [v for a, v in pairs if isinstance(v, torch.Tensor) and not a.written]

    compared = 0
    groups = read_trace(TINY_TRACE).groups()
    for group, call in zip(groups, read_plan(tmp_path / "x.plan.json").calls, strict=True):
        for ours, theirs in zip(read_tensors(group.call), read_tensors(call), strict=True):
            assert torch.equal(ours, theirs)
            compared += ours.numel()
    assert compared > 0


def test_a_plan_is_made_and_run_in_workers(tmp_path):
    trace = trace_of(tmp_path, op("aten::mm", **MATRICES))
    isolated = ReplayOptions(device="cpu", timing=HERE.timing)

    plan = make_plan(trace, options=isolated)

    assert isinstance(plan.calls[0].outcome, PlannedOperator)
    assert replay(plan, options=isolated).rows[0].status == "ok"


def test_the_operator_of_a_plan_may_be_missing_here(tmp_path):
    def rename(fields):
        fields["calls"][0]["operator"]["resolved_op"] = "nobody::op"

    report = replay(write_fields(tmp_path, rename), Selection(ops=("aten::mm",)), options=HERE)

    assert report.rows[0].reason == "operator_unresolved"


def test_a_dtype_that_this_torch_lacks_fails_the_row(tmp_path):
    def rename(fields):
        fields["calls"][0]["operator"]["arguments"][0]["value"]["tensor"]["dtype"] = "float3"

    report = replay(write_fields(tmp_path, rename), Selection(ops=("aten::mm",)), options=HERE)

    assert report.rows[0].reason == "failed"
    assert "has no dtype 'float3'" in report.rows[0].detail


SELECTIONS = [
    (Selection(), ["aten::mm", "nobody::op", "aten::relu", "aten::clamp_min"]),
    (Selection(ops=("aten::relu", "aten::mm")), ["aten::mm", "aten::relu"]),
    (Selection(match="^aten"), ["aten::mm", "aten::relu", "aten::clamp_min"]),
    (Selection(scope="step"), ["aten::mm", "nobody::op"]),
    (Selection(scope="ste"), ["aten::mm", "nobody::op"]),
    (Selection(level="outermost"), ["aten::mm", "nobody::op", "aten::relu"]),
    (Selection(level="leaf"), ["aten::mm", "nobody::op", "aten::clamp_min"]),
    (Selection(top=1), ["aten::mm"]),
    (Selection(ops=("aten::relu", "aten::clamp_min"), top=1), ["aten::relu"]),
    (Selection(ops=("aten::relu", "nobody::op"), top=2, level="outermost"),
     ["aten::relu", "nobody::op"]),
    (Selection(limit=2), ["aten::mm", "nobody::op"]),
]  # fmt: skip


@pytest.mark.parametrize(("selection", "ops"), SELECTIONS)
def test_calls_of_a_plan_are_chosen_like_those_of_a_trace(tmp_path, selection, ops):
    assert [call.op for call in planned_trace(tmp_path).select(selection)] == ops


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"match": "("}, "not a regular expression"),
        ({"scope": "nowhere"}, "no annotation is named 'nowhere'; the plan has: step"),
        ({"level": "top"}, "level is 'top'"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(tmp_path, choice, message):
    with pytest.raises(ValueError, match=message):
        planned_trace(tmp_path).select(Selection(**choice))


def change_at(*keys, to):
    def change(fields):
        for key in keys[:-1]:
            fields = fields[key]
        fields[keys[-1]] = to

    return change


FIRST = ("calls", 0, "operator", "arguments", 0)
BAD_ENTRIES = [
    (change_at("format", to="opreplay-plan/1"), "format is 'opreplay-plan/1', this version reads"),
    (change_at("format", to=1), "format: expected text, got 1"),
    (change_at("calls", to={}), r"calls: expected a list, got \{\}"),
    (change_at("calls", 1, to=3), r"calls\[1\]: expected an object, got 3"),
    (change_at("calls", 0, "count", to=-1), r"calls\[0\]\.count: expected a whole number"),
    (change_at("calls", 0, "leaf", to=0), r"calls\[0\]\.leaf: expected true or false, got 0"),
    (change_at("calls", 0, "operator", to=None), "expected either 'operator' or 'skipped'"),
    (change_at("calls", 0, "recorded_us", "host", "median", to=True), "expected a number"),
    (change_at("calls", 1, "skipped", "reason", to="tired"), "expected one of metadata_missing"),
    (change_at(*FIRST, to={"name": "x"}), r"arguments\[0\]: expected an object with 'type'"),
    (change_at(*FIRST, "value", to={"tensor": 1, "x": 2}), "expected a value or an object with"),
    (change_at(*FIRST, "value", "tensor", "dims", to=["x"]), r"value\.tensor\.dims\[0\]"),
    (change_at(*FIRST, "value", "tensor", "strides", to=[1]), "as many strides as dims"),
    (change_at("calls", 0, "batch", to={"context": 1}), r"calls\[0\]\.batch\.context"),
    (change_at("calls", 0, "operator", "recipe", to={"name": "x", "parameters": []}), "an object"),
    (change_at(*FIRST, "producer", to={}), "expected an object with 'operator'"),
    (change_at(*FIRST, "value", to={"complex": [1]}), "expected two numbers"),
    (change_at(*FIRST, "value", to={"complex": ["x" * 99, 1]}), r"got 'x{59}\.\.\.;"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ENTRIES)
def test_a_bad_entry_is_one_sentence_with_file_place_and_remedy(tmp_path, change, message):
    path = write_fields(tmp_path, change)

    with pytest.raises(PlanError, match=message) as raised:
        read_plan(path)

    assert str(raised.value).startswith(f"{path}: ")
    assert "write it again with: opreplay plan TRACE -o" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_cut_in_half_is_named_with_the_byte(tmp_path):
    path = tmp_path / "x.plan.json"
    write_plan(planned_trace(tmp_path), path)
    path.write_bytes(path.read_bytes()[:1000])

    with pytest.raises(PlanError, match=r"x\.plan\.json: byte \d+: not JSON"):
        read_plan(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"missing\.plan\.json: No such file"):
        read_plan(tmp_path / "missing.plan.json")


def test_a_plan_is_told_from_a_trace(tmp_path):
    write_plan(planned_trace(tmp_path), tmp_path / "x.json")

    assert is_plan(tmp_path / "x.json")
    assert not is_plan(tmp_path / "trace.json")
    assert not is_plan(tmp_path / "missing.json")


def test_reading_a_plan_needs_no_torch(tmp_path):
    write_plan(planned_trace(tmp_path), tmp_path / "x.plan.json")
    program = (
        f"import sys, opreplay; opreplay.read_plan({str(tmp_path / 'x.plan.json')!r});"
        "print('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "False\n"


def test_plans_are_part_of_the_python_interface():
    assert opreplay.make_plan is make_plan
    assert opreplay.read_plan is read_plan


def test_a_call_whose_resolving_ends_its_process_is_planned_with_the_reason(tmp_path):
    (group,) = trace_of(tmp_path, op("aten::mm", **MATRICES)).groups()

    crashed = _planned_call(group, Died("SIGSEGV", "")).outcome
    late = _planned_call(group, TimedOut(600.0)).outcome

    assert crashed.reason == "crashed"
    assert "SIGSEGV" in crashed.detail
    assert late == Skipped("timed_out", "resolving took longer than 600 s")


def test_a_call_without_types_is_planned_with_the_flag_that_records_them(tmp_path):
    plan = make_plan(trace_of(tmp_path, op("aten::mm")), options=HERE)

    assert plan.calls[0].outcome.reason == "metadata_missing"
    assert "record_shapes" in plan.calls[0].outcome.detail


@pytest.fixture
def scaled():
    """A recipe for matrix products that writes its parameter into every element."""

    def fill(call):
        value = call.parameter("mine.value")
        call.tensor("self").write(torch.full(call.tensor("self").dims, value))
        return f"all {value}"

    parameters = (Parameter("mine.value", 1.5, "value"),)
    recipe("aten::mm", parameters=parameters, produced={"mat2": "aten::ones"})(fill)
    yield fill
    remove_recipe(fill)


def test_what_a_recipe_was_set_to_travels_in_the_plan(scaled, tmp_path):
    trace, path = trace_of(tmp_path, op("aten::mm", **MATRICES)), tmp_path / "x.plan.json"
    write_plan(make_plan(trace, options=replace(HERE, recipe_parameters={"mine.value": "4"})), path)

    (call,) = read_plan(path).calls
    assert call.outcome.recipe.parameters == (("mine.value", 4.0),)
    assert [a.producer for a in call.outcome.arguments] == [None, "aten::ones"]
    (row,) = replay(path, options=HERE).rows
    assert (row.recipe, row.assumptions) == ("all 4.0", ())
    (row,) = replay(path, options=replace(HERE, recipe_parameters={"mine.value": "2"})).rows
    assert row.recipe == "all 2.0"


def test_another_recipe_than_the_plans_is_an_assumption(scaled, tmp_path):
    plan = make_plan(trace_of(tmp_path, op("aten::mm", **MATRICES)), options=HERE)
    remove_recipe(scaled)
    try:
        (row,) = replay(plan, options=HERE).rows
    finally:
        recipe("aten::mm")(scaled)
    (sentence,) = row.assumptions
    assert "scaled.<locals>.fill, here no recipe chooses the values" in sentence


def test_a_parameter_of_no_recipe_is_refused_when_the_plan_is_made(tmp_path):
    trace = trace_of(tmp_path, op("aten::mm", **MATRICES))
    with pytest.raises(WorkerError, match=r"no recipe has a parameter 'mine\.value'"):
        make_plan(trace, options=replace(HERE, recipe_parameters={"mine.value": "2"}))
