"""Replays: what becomes of a recorded call, as a row."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kineto_events import TINY_TRACE, op, trace_of

import opreplay
from opreplay.attempt import Attempt, _on_meta
from opreplay.cli import main
from opreplay.isolation import WorkerError
from opreplay.options import ReplayOptions
from opreplay.recipes import recipe, remove_recipe
from opreplay.recipes.parameters import Parameter
from opreplay.replay import Replay, make_plan, replay
from opreplay.resolve.resolver import Resolver
from opreplay.stat import TimingOptions
from opreplay.trace import Selection, Skipped

FAST = TimingOptions(time_s=0.002, cold=False)
HOSTILE = ("hostile_ops",)


def matmul(**rest):
    return op(
        "aten::mm",
        types=["float", "float"],
        dims=[[2, 3], [3, 4]],
        strides=[[3, 1], [4, 1]],
        values=["", ""],
        **rest,
    )


def unary(name, dtype="float", **rest):
    return op(name, types=[dtype], dims=[[3, 3]], strides=[[3, 1]], values=[""], **rest)


def options(**choices):
    """Fast measurements in this process, unless a choice says otherwise."""
    defaults = {"timing": FAST, "isolation": False, "device": "cpu"}
    return ReplayOptions(**{**defaults, **choices})


def rows_of(tmp_path, *events, **choices):
    return replay(trace_of(tmp_path, *events), options=options(**choices)).rows


def row_of(tmp_path, *events, **choices):
    (row,) = rows_of(tmp_path, *events, **choices)
    return row


def test_a_call_is_timed_and_its_row_says_what_ran(tmp_path):
    row = row_of(tmp_path, matmul())

    assert (row.status, row.reason, row.detail) == ("ok", None, "")
    assert (row.op, row.resolved_op, row.overload) == ("aten::mm", "aten::mm", "")
    assert row.schema == "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    assert row.bytes == (2 * 3 + 3 * 4) * 4
    assert row.timing.host_ns.median > 0
    assert row.timing.host_ns.route == "loop"


def test_identical_calls_are_one_row_with_count_and_recorded_times(tmp_path):
    events = [matmul(ts=0, dur=10), matmul(ts=20, dur=30), matmul(ts=60, dur=20)]

    row = row_of(tmp_path, *events)

    assert row.count == 3
    assert (row.host.median, row.host.total) == (20, 60)


def test_rows_come_in_the_order_of_the_trace(tmp_path):
    rows = rows_of(tmp_path, unary("aten::relu", ts=0), matmul(ts=20), unary("aten::abs", ts=40))

    assert [row.op for row in rows] == ["aten::relu", "aten::mm", "aten::abs"]


def test_only_selected_calls_are_replayed(tmp_path):
    trace = trace_of(tmp_path, unary("aten::relu", ts=0), matmul(ts=20))

    report = replay(trace, Selection(ops=("aten::mm",)), options=options())

    assert [row.op for row in report.rows] == ["aten::mm"]


def test_a_call_without_types_is_skipped_with_the_flag_that_records_them(tmp_path):
    row = row_of(tmp_path, op("aten::mm"))

    assert (row.status, row.reason) == ("skipped", "metadata_missing")
    assert "record_shapes" in row.detail


def test_an_operator_of_nobody_is_skipped(tmp_path):
    row = row_of(tmp_path, unary("nobody::relu"))

    assert (row.status, row.reason) == ("skipped", "operator_unresolved")
    assert row.resolved_op == "nobody::relu"


def test_r4_a_plain_function_is_replayed_with_a_warning_and_no_schema(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        row = row_of(tmp_path, unary("plain::double"), namespaces={"plain": ("plain_ops",)})

    assert row.status == "ok"
    assert row.schema is None
    assert row.to_json()["schema"] is None
    assert row.timing.host_ns.route == "python"
    assert "plain::double" in caplog.text
    assert "0 schemas were searched" in caplog.text


def test_r4_a_mismatch_that_is_let_through_warns_with_every_schema_and_why(tmp_path, caplog):
    two = op("hostile::refuse", types=["float"] * 2, dims=[[4]] * 2, strides=[[1]] * 2)
    with caplog.at_level(logging.WARNING):
        row = row_of(tmp_path, two, imports=HOSTILE, allow_mismatch=True)

    assert row.status == "failed"
    ((schema, why),) = row.schemas_rejected
    assert schema == "hostile::refuse(Tensor x) -> Tensor"
    assert f"1 schemas were searched; {schema}: {why}" in caplog.text


def test_r4_a_plain_function_is_a_failure_under_strict(tmp_path):
    row = row_of(
        tmp_path, unary("plain::double"), namespaces={"plain": ("plain_ops",)}, strict=True
    )

    assert (row.status, row.reason) == ("failed", "failed")
    assert "--strict" in row.detail
    assert "plain::double" in row.detail


def test_r21_a_string_default_is_on_the_row_and_in_a_warning(tmp_path, caplog):
    gelu = op("aten::gelu", types=["float", ""], dims=[[4], []], strides=[[1], []], values=["", ""])
    with caplog.at_level(logging.WARNING):
        row = row_of(tmp_path, gelu)

    (assumption,) = row.assumptions
    assert assumption.startswith("approximate: the profiler drops strings")
    assert f"aten::gelu: {assumption}" in caplog.text


def test_r22_a_renamed_operator_is_on_the_row_and_in_a_warning(tmp_path, caplog):
    library = torch.library.Library("aiter", "FRAGMENT")
    library.define("_moe_sum(Tensor a) -> Tensor")
    library.impl("_moe_sum", lambda a: a + a, "CPU")
    with caplog.at_level(logging.WARNING):
        row = row_of(tmp_path, unary("aiter::moe_sum"))

    assert (row.op, row.resolved_op) == ("aiter::moe_sum", "aiter::_moe_sum")
    assert row.status == "ok"
    sentence = "aiter::moe_sum is called aiter::_moe_sum here"
    assert sentence in row.assumptions
    assert f"aiter::moe_sum: {sentence}" in caplog.text


def test_r38_the_overload_of_identical_calls_is_resolved_once(tmp_path, monkeypatch):
    resolved = []
    find = Resolver.resolve

    def counted(self, call):
        resolved.append(call.name)
        return find(self, call)

    monkeypatch.setattr(Resolver, "resolve", counted)
    row = row_of(tmp_path, *[matmul(ts=20 * index) for index in range(5)])

    assert row.count == 5
    assert resolved == ["aten::mm"]


def test_assumptions_are_failures_under_strict(tmp_path):
    events = [op("aten::mm", types=["float", "float"], dims=[[2, 3], [3, 4]])]

    (lenient,) = rows_of(tmp_path, *events)
    (strict,) = rows_of(tmp_path, *events, strict=True)

    assert (lenient.status, strict.status) == ("ok", "failed")
    assert lenient.assumptions == strict.assumptions != ()


def test_what_the_operator_raises_is_the_detail_in_one_line(tmp_path):
    row = row_of(tmp_path, unary("hostile::refuse"), imports=HOSTILE)

    assert (row.status, row.reason) == ("failed", "failed")
    assert row.detail == "RuntimeError: the shapes do not fit"


def test_the_run_goes_on_after_a_failure_unless_it_shall_stop(tmp_path):
    events = [unary("hostile::refuse", ts=0), matmul(ts=20)]

    assert len(rows_of(tmp_path, *events, imports=HOSTILE)) == 2
    assert len(rows_of(tmp_path, *events, imports=HOSTILE, stop_on_error=True)) == 1


def test_tensors_over_the_budget_are_skipped(tmp_path):
    row = row_of(tmp_path, matmul(), memory_budget=71)

    assert (row.status, row.reason) == ("skipped", "over_memory_budget")


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("hostile::run_out_of_memory", "float", "over_memory_budget"),
        ("hostile::use_missing_kernel", "float", "backend_missing"),
        ("aten::inverse", "int", "failed"),
    ],
)
def test_a_limit_of_the_machine_is_told_from_a_failure(tmp_path, name, dtype, reason):
    assert row_of(tmp_path, unary(name, dtype), imports=HOSTILE).reason == reason


def test_a_dtype_that_only_this_devices_kernel_refuses_is_backend_missing(tmp_path):
    event = op(
        "aten::fmod",
        types=["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"],
        dims=[[4], [4]],
        strides=[[1], [1]],
        values=["", ""],
    )

    row = row_of(tmp_path, event)

    assert row.reason == "backend_missing"
    assert "not implemented for 'Float8_e4m3fn'" in row.detail


def test_gradients_are_recorded_on_request(tmp_path):
    event = matmul()
    (call,) = trace_of(tmp_path, event).calls()
    grad = options(timing=TimingOptions(time_s=0.002, cold=False, grad=True))
    attempt = Attempt(grad, device="cpu")
    prepared = attempt.prepare(attempt.resolve(call))

    assert prepared.mode == "grad"
    assert all(tensor.requires_grad for tensor in prepared.inputs.arguments)
    assert row_of(tmp_path, event, timing=grad.timing).status == "ok"


def test_a_device_error_spoils_the_worker(tmp_path):
    (call,) = trace_of(tmp_path, unary("hostile::break_device")).calls()

    outcome = Attempt(options(imports=HOSTILE), device="cpu")(call, lambda: None)

    assert outcome.reason == "failed"
    assert outcome.device_broken


def test_the_limit_starts_when_inputs_are_made_and_not_for_skipped_calls(tmp_path):
    attempt = Attempt(options(), device="cpu")
    started = []
    for call in trace_of(tmp_path, unary("nobody::relu"), matmul(ts=20)).calls():
        attempt(call, lambda name=call.name: started.append(name))

    assert started == ["aten::mm"]


def test_what_trips_a_room_up_costs_one_row(tmp_path, monkeypatch):
    def trip(*_arguments, **_choices):
        raise LookupError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(Resolver, "resolve", trip)
        unresolved = row_of(tmp_path, matmul())
    monkeypatch.setattr("opreplay.attempt.make_inputs", trip)
    unmade = row_of(tmp_path, matmul())

    assert unresolved.detail == "resolving it raised LookupError: unforeseen"
    assert unmade.detail == "making its inputs raised LookupError: unforeseen"
    assert unresolved.reason == unmade.reason == "failed"


def test_calls_that_crash_or_hang_cost_one_row_each(tmp_path):
    events = [
        unary("hostile::segfault", ts=0),
        matmul(ts=20),
        unary("hostile::hang", ts=40),
        unary("aten::relu", ts=60),
    ]

    crashed, first, hung, second = rows_of(
        tmp_path, *events, imports=HOSTILE, isolation=True, timeout_s=1.0
    )

    assert (crashed.status, crashed.reason) == ("failed", "crashed")
    assert "SIGSEGV" in crashed.detail
    assert (hung.status, hung.reason) == ("failed", "timed_out")
    assert hung.detail == "it took longer than 1 s"
    assert (first.status, second.status) == ("ok", "ok")


def test_the_environment_names_the_workers_threads_and_device(tmp_path):
    trace = trace_of(tmp_path, matmul())

    report = replay(trace, options=options(threads=1, isolation=True))

    assert (report.environment.threads, report.environment.device) == (1, "cpu")
    assert report.environment.torch == torch.__version__


def test_registered_namespaces_reach_the_worker(tmp_path):
    opreplay.register_namespace("opreplay_runner_plain", "plain_ops")

    row = row_of(tmp_path, unary("opreplay_runner_plain::double"), isolation=True)

    assert row.status == "ok"


def test_a_module_that_cannot_be_imported_is_an_error(tmp_path):
    with pytest.raises(WorkerError, match="no_such_module"):
        rows_of(tmp_path, matmul(), imports=("no_such_module",))


@pytest.mark.skipif(not TINY_TRACE.exists(), reason="needs the recorded trace")
def test_the_parent_of_a_worker_loads_no_torch():
    program = f"""
import sys, opreplay
options = opreplay.ReplayOptions(timing=opreplay.TimingOptions(time_s=0.002, cold=False))
report = opreplay.replay({str(TINY_TRACE)!r}, opreplay.Selection(limit=2), options=options)
assert report.rows and report.by_status()["ok"].signatures
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"


def test_a_source_that_cannot_be_read_leaves_no_worker(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(
        "opreplay.isolation.Isolated.close", lambda self: closed.append(self._worker.end())
    )
    with pytest.raises(ValueError, match=r"missing\.json"):
        Replay(tmp_path / "missing.json", options=options(isolation=True))

    assert len(closed) == 1


def test_r12_a_prepared_call_returns_the_operators_result(tmp_path):
    (call,) = trace_of(tmp_path, matmul()).calls()

    prepared = opreplay.prepare(call, options=options())

    first, second = prepared.arguments()
    assert torch.equal(prepared.run()[0], first @ second)


def test_single_calls_say_why_they_cannot_be_made(tmp_path):
    (call,) = trace_of(tmp_path, unary("nobody::relu")).calls()

    assert isinstance(opreplay.resolve(call), Skipped)
    assert isinstance(opreplay.prepare(call), Skipped)


def test_a_selection_and_options_refuse_what_makes_no_sense():
    for make, choice, message in [
        (Selection, {"top": 0}, "top must be at least 1"),
        (Selection, {"limit": -1}, "limit must be at least 1"),
        (ReplayOptions, {"threads": 0}, "threads must be at least 1"),
        (ReplayOptions, {"memory_budget": 0}, "memory_budget must be at least 1"),
        (ReplayOptions, {"timeout_s": 0.0}, "timeout_s must be more than 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(**choice)


def test_a_run_can_be_read_row_by_row(tmp_path):
    trace = trace_of(tmp_path, matmul(), unary("aten::relu", ts=20))
    with contextlib.closing(Replay(trace, options=options())) as run:
        assert len(run.calls) == 2
        assert next(run.rows()).op == "aten::mm"
        assert run.name == str(Path(tmp_path / "trace.json"))


def test_a_plain_function_that_refuses_a_dtype_failed_for_no_meta_kernel_vouches(tmp_path):
    row = row_of(tmp_path, unary("plain::refuse_dtype"), namespaces={"plain": ("plain_ops",)})

    assert row.reason == "failed"


def test_the_meta_kernel_is_asked_with_the_same_shapes_and_strides():
    tensor = torch.ones(2, 3).t()
    moved, device, number = _on_meta([tensor, torch.device("cpu"), 3])

    assert (moved.shape, moved.stride(), moved.device.type) == ((3, 2), (1, 3), "meta")
    assert (device, number) == (torch.device("meta"), 3)


def test_r13_a_plan_made_twice_is_equal_and_running_it_leaves_it_so(tmp_path):
    trace = trace_of(tmp_path, matmul(), unary("aten::relu", ts=20))
    first, second = (make_plan(trace, options=options()) for _ in range(2))

    replay(first, options=options())

    assert first == second


@pytest.fixture
def filled():
    """A recipe that fills all it is given with its parameter, for an operator that keeps that."""
    seen = []
    library = torch.library.Library("kept", "DEF")
    library.define("look(Tensor x) -> Tensor")
    library.define("look_again(Tensor x) -> Tensor")
    for name in ("look", "look_again"):
        library.impl(name, lambda x: (seen.append(x.unique().tolist()), x.clone())[1], "CPU")

    def fill(call):
        value = call.parameter("kept.value")
        call.tensor("x").write(torch.full(call.tensor("x").dims, value))
        return f"all {value}"

    recipe("kept::look", parameters=(Parameter("kept.value", 0.5, "value"),))(fill)
    yield seen
    remove_recipe(fill)
    library._destroy()


def test_r16_a_recipe_serves_exact_names_alone(filled, tmp_path):
    rows = rows_of(tmp_path, unary("kept::look"), unary("kept::look_again", ts=20))

    assert [row.recipe for row in rows] == ["all 0.5", None]
    for pattern in ("kept::lo*", "look", "kept::"):
        with pytest.raises(ValueError, match="no exact operator name"):
            recipe(pattern)(lambda call: None)


def test_r17_parameters_reach_the_recipe_and_unknown_ones_are_errors(filled, tmp_path, capsys):
    row = row_of(tmp_path, unary("kept::look"), recipe_parameters={"kept.value": "0.25"})
    assert row.recipe == "all 0.25"
    assert {tuple(values) for values in filled} == {(0.25,)}
    with pytest.raises(WorkerError, match=r"no recipe has a parameter 'kept\.valu'"):
        row_of(tmp_path, unary("kept::look"), recipe_parameters={"kept.valu": "0.25"})

    command = ["run", str(tmp_path / "trace.json"), "--no-isolation", "--time", "0.002", "-v"]
    filled.clear()
    assert main([*command, "--device", "cpu", "--recipe", "kept.value=2"]) == 0
    assert {tuple(values) for values in filled} == {(2.0,)}
    assert main([*command, "--device", "cpu", "--recipe", "kept.valu=2"]) == 2
    assert "no recipe has a parameter 'kept.valu'" in capsys.readouterr().err


def test_r39_many_calls_go_the_same_way_as_a_single_one(filled, tmp_path):
    ours = options(namespaces={"kept": ("plain_ops",), "plain": ("plain_ops",)})
    trace = trace_of(tmp_path, unary("kept::look"), unary("plain::double", ts=20))
    looked, doubled = replay(trace, options=ours).rows
    of_many = {tuple(values) for values in filled}
    filled.clear()

    single, plain = (opreplay.prepare(call, options=ours) for call in trace.calls())
    single.run()

    assert {tuple(values) for values in filled} == of_many == {(0.5,)}
    assert (looked.status, doubled.status) == ("ok", "ok")
    assert isinstance(plain(), torch.Tensor)


def test_r40_a_recipe_that_raises_fails_the_row(tmp_path):
    def fill(call):
        raise RuntimeError("no tables today")

    recipe("aten::relu")(fill)
    try:
        failed, fine = rows_of(tmp_path, unary("aten::relu"), matmul(ts=20))
    finally:
        remove_recipe(fill)

    assert (failed.status, failed.reason, failed.timing) == ("failed", "recipe_failed", None)
    assert failed.detail.endswith("fill for aten::relu: RuntimeError: no tables today")
    assert fine.status == "ok"


def test_rows_of_a_trace_and_of_its_plan_tell_their_inputs(tmp_path):
    trace, here = trace_of(tmp_path, matmul()), ReplayOptions(device="cpu", isolation=False)
    (recorded,) = opreplay.replay(trace, options=here).rows
    (planned,) = opreplay.replay(opreplay.make_plan(trace, options=here), options=here).rows
    assert recorded.inputs == "float[2,3], float[3,4]"
    assert planned.inputs == "float32[2,3], float32[3,4]"
