"""Rows by step: an operator whose recipe reads the step is a row for each phase, or each batch."""

from __future__ import annotations

import json

import pytest
import torch
from kineto_events import op, trace_of, write

from opreplay.cli import main
from opreplay.options import ReplayOptions
from opreplay.plan_file import read_plan, write_plan
from opreplay.recipes import recipe, remove_recipe
from opreplay.replay import make_plan, replay
from opreplay.report.results import share_of
from opreplay.stat import TimingOptions
from opreplay.trace import Phase, Selection, Step

HERE = ReplayOptions(isolation=False, device="cpu", timing=TimingOptions(time_s=0.002, cold=False))
ATTEND = "stepping::attend"
PROMPTS = "execute_context_2(30)_generation_0(0)"
GENERATING = "execute_context_0(0)_generation_2(2)"


@pytest.fixture
def attend():
    """An operator whose recipe fills in the keys of the step's generating sequences."""
    library = torch.library.Library("stepping", "DEF")
    library.define("attend(Tensor lengths) -> Tensor")
    library.impl("attend", lambda lengths: lengths + 1, "CPU")

    def fill(call):
        phase = call.batch.generation if call.batch else Phase()
        call.tensor("lengths").write_list([phase.keys or 0] * 4)
        return f"{phase.keys or 0} keys"

    recipe(ATTEND, reads_step=True)(fill)
    yield
    remove_recipe(fill)
    library._destroy()


def scope(name, ts):
    return op(name, ts=ts, dur=90, cat="user_annotation")


def call(ts, dur, name=ATTEND):
    return op(name, ts=ts, dur=dur, types=["long int"], dims=[[4]], strides=[[1]], values=[""])


EVENTS = [
    scope(PROMPTS, 0), call(10, 40), call(60, 5, "aten::relu"),
    # 30 tokens of the prompts, then 2 more in each step: 32, 34 and 36 keys.
    scope(GENERATING, 100), call(110, 9), call(130, 9), call(160, 5, "aten::relu"),
    scope(GENERATING, 200), call(210, 7),
    scope(GENERATING, 300), call(310, 8), call(330, 8),
    call(500, 3),
]  # fmt: skip


def rows_of(tmp_path, **choices):
    return replay(trace_of(tmp_path, *EVENTS), Selection(**choices), options=HERE).rows


def test_each_phase_is_a_row_with_the_step_of_median_time(attend, tmp_path):
    prompts, relu, generating, outside = rows_of(tmp_path)

    assert (prompts.step, prompts.count, prompts.recipe) == (PROMPTS, 1, "0 keys")
    # Recorded are 9, 9, 7, 8 and 8 us: the median is a call of the last step.
    assert (generating.step, generating.count, generating.recipe) == (GENERATING, 5, "36 keys")
    assert generating.batch == Step(Phase(), Phase(2, 2, 36, carried=True))
    assert (generating.host.median, generating.host.total) == (8, 41)
    assert (outside.step, outside.batch, outside.count) == (None, None, 1)
    assert (relu.op, relu.step, relu.count) == ("aten::relu", None, 2)
    assert prompts.signature == generating.signature == outside.signature


def test_all_steps_are_a_row_for_each_batch(attend, tmp_path):
    rows = rows_of(tmp_path, steps="all", ops=(ATTEND,))

    assert [(row.step, row.count, row.recipe) for row in rows] == [
        (PROMPTS, 1, "0 keys"),
        (GENERATING, 2, "32 keys"),
        (GENERATING, 1, "34 keys"),
        (GENERATING, 2, "36 keys"),
        (None, 1, "0 keys"),
    ]


@pytest.mark.parametrize("steps", ["median", "all"])
def test_rows_of_one_signature_add_up_to_its_calls_and_times(attend, tmp_path, steps):
    whole = share_of(rows_of(tmp_path, steps=steps))

    assert (whole.signatures, whole.calls) == (2, 9)
    assert whole.host_us == 40 + 5 + 9 + 9 + 5 + 7 + 8 + 8 + 3


def test_r6_the_step_reaches_exact_names_alone(attend, tmp_path):
    library = torch.library.Library("stepping", "FRAGMENT")
    library.define("attend_v9(Tensor lengths) -> Tensor")
    library.impl("attend_v9", lambda lengths: lengths + 1, "CPU")
    events = [scope(PROMPTS, 0), call(10, 4, "stepping::attend_v9"), scope(GENERATING, 100),
              call(110, 4, "stepping::attend_v9")]  # fmt: skip

    (row,) = replay(trace_of(tmp_path, *events), options=HERE).rows

    assert (row.count, row.step, row.recipe) == (2, None, None)


def test_a_plan_fills_the_lengths_of_its_trace(attend, tmp_path):
    path = tmp_path / "x.plan.json"
    trace = trace_of(tmp_path, *EVENTS)
    for steps in ("median", "all"):
        selection = Selection(steps=steps)
        plan = make_plan(trace, selection, options=HERE)
        write_plan(plan, path)
        assert read_plan(path) == plan
        of_plan = replay(path, options=HERE).rows
        of_trace = replay(trace, selection, options=HERE).rows
        assert [(r.step, r.batch, r.count, r.recipe) for r in of_plan] == [
            (r.step, r.batch, r.count, r.recipe) for r in of_trace
        ]


def test_step_and_batch_are_written_and_printed(attend, tmp_path, capsys):
    trace = write(tmp_path / "trace.json", {"traceEvents": EVENTS})
    fast = ["--no-isolation", "--device", "cpu", "--time", "0.002"]
    files = ["--json", str(tmp_path / "x.json"), "--csv", str(tmp_path / "x.csv")]

    assert main(["run", str(trace), "--op", ATTEND, "--steps", "all", *fast, *files]) == 0

    (_, row, *_) = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert row["step"] == GENERATING
    assert row["batch"]["generation"] == {
        "sequences": 2, "queries": 2, "keys": 32, "carried": True, "lengths": None,
        "squares": None, "products": None,
    }  # fmt: skip
    assert GENERATING in (tmp_path / "x.csv").read_text().splitlines()[2]
    assert f"ok  {GENERATING}" in capsys.readouterr().out


def test_steps_of_a_plan_are_chosen_when_it_is_written(attend, tmp_path, capsys):
    trace = write(tmp_path / "trace.json", {"traceEvents": EVENTS})
    path = str(tmp_path / "x.plan.json")

    assert main(["plan", str(trace), "--steps", "all", "-o", path, "--no-isolation"]) == 0
    assert len(read_plan(path).calls) == 6
    assert main(["run", path, "--steps", "median"]) == 2
    assert "--steps is chosen when a plan is written" in capsys.readouterr().err


def test_a_recipe_that_reads_the_step_must_say_so(tmp_path):
    def fill(call):
        return str(call.batch)

    recipe("aten::relu")(fill)
    try:
        (row,) = replay(trace_of(tmp_path, call(0, 1, "aten::relu")), options=HERE).rows
    finally:
        remove_recipe(fill)
    assert row.reason == "recipe_failed"
    assert "register it with reads_step=True" in row.detail


def test_unknown_steps_are_refused():
    with pytest.raises(ValueError, match="steps is 'some', expected one of median, all"):
        Selection(steps="some")
