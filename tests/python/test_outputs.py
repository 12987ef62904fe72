"""Outputs: finite, repeatable, equal to saved ones; and what is said where they are not."""

from __future__ import annotations

import json

import pytest
import torch
from kineto_events import op, write

from opreplay.cli import main
from opreplay.outputs import _tensors, compare_outputs, judge, outputs_file

HERE = ["--no-isolation", "--device", "cpu", "--time", "0.002"]


def unary(name, ts=0):
    return op(name, types=["float"], dims=[[4]], strides=[[1]], values=[""], ts=ts)


def rows_of(tmp_path, events, *arguments, status=0):
    trace = write(tmp_path / "trace.json", {"traceEvents": events})
    out = tmp_path / "out.json"
    assert main(["run", str(trace), *HERE, "--json", str(out), *arguments]) == status
    return {row["op"]: row["outputs"] for row in json.loads(out.read_text())["rows"]}


def test_good_outputs_pass(tmp_path):
    outputs = rows_of(tmp_path, [unary("aten::relu")], "--check-outputs")["aten::relu"]

    assert outputs == {"finite": True, "repeatable": True, "reference": None, "detail": ""}


def test_nobody_looks_unless_asked_to(tmp_path):
    assert rows_of(tmp_path, [unary("aten::relu")])["aten::relu"] is None


def test_an_infinite_output_is_exit_status_1_and_told(tmp_path, capsys):
    library = torch.library.Library("dividing", "DEF")
    library.define("by_zero(Tensor x) -> Tensor")
    library.impl("by_zero", lambda x: x / 0, "CPU")

    (outputs,) = rows_of(
        tmp_path, [unary("dividing::by_zero")], "--check-outputs", status=1
    ).values()

    assert (outputs["finite"], outputs["repeatable"]) == (False, True)
    said = capsys.readouterr().out
    assert ": an output is not finite" in said
    assert "The outputs of 0 of 1 rows that were checked are as asked." in said


def test_an_operator_that_counts_its_calls_is_not_repeatable(tmp_path):
    count = torch.zeros(())
    library = torch.library.Library("counting", "DEF")
    library.define("next(Tensor x) -> Tensor")
    library.impl("next", lambda x: x + count.add_(1), "CPU")

    outputs = rows_of(tmp_path, [unary("counting::next")], "--check-outputs", status=1)

    assert not outputs["counting::next"]["repeatable"]
    assert "a second run with equal inputs differs" in outputs["counting::next"]["detail"]


def test_an_operator_that_draws_numbers_draws_the_same_twice(tmp_path):
    rand = op("aten::rand_like", types=["float", "", "", "", "", ""], dims=[[64]] + [[]] * 5,
              strides=[[1]] + [[]] * 5, values=[""] * 6, ts=20)  # fmt: skip

    outputs = rows_of(tmp_path, [rand], "--check-outputs")

    assert outputs["aten::rand_like"]["repeatable"]


def test_saved_outputs_are_a_reference_and_written_arguments_count(tmp_path, capsys):
    saved = str(tmp_path / "saved")
    events = [unary("aten::relu"), unary("aten::neg_", ts=20)]
    rows_of(tmp_path, events, "--save-outputs", saved)

    same = rows_of(tmp_path, events, "--reference", saved)
    other = rows_of(tmp_path, events, "--reference", saved, "--seed", "5", status=1)
    close = rows_of(tmp_path, events, "--reference", saved, "--seed", "5", "--check", "0,2.1")

    assert [one["reference"] for one in same.values()] == [True, True]
    assert [one["reference"] for one in other.values()] == [False, False]
    assert "against the reference: output 0 differs: Mismatched" in other["aten::relu"]["detail"]
    assert [one["reference"] for one in close.values()] == [True, True]


def test_a_call_without_saved_outputs_says_so(tmp_path):
    outputs = rows_of(tmp_path, [unary("aten::relu")], "--reference", str(tmp_path), status=1)

    assert "there is no" in outputs["aten::relu"]["detail"]


def test_memory_as_it_is_found_is_no_output(tmp_path):
    empty = op("aten::empty_like", types=["float", "", "", "", "", ""], dims=[[4]] + [[]] * 5,
               strides=[[1]] + [[]] * 5, values=[""] * 6)  # fmt: skip

    assert rows_of(tmp_path, [empty], "--check-outputs") == {"aten::empty_like": None}


def test_what_raises_fails_its_row(tmp_path):
    arguments = ["--check-outputs", "--import", "hostile_ops"]

    assert rows_of(tmp_path, [unary("hostile::refuse")], *arguments) == {"hostile::refuse": None}


def test_a_reference_that_is_not_there_is_one_line_and_status_2(tmp_path, capsys):
    trace = write(tmp_path / "trace.json", {"traceEvents": [unary("aten::relu")]})

    assert main(["run", str(trace), *HERE, "--reference", "nowhere"]) == 2
    assert "nowhere: there is no directory of saved outputs" in capsys.readouterr().err


def test_outputs_differ_in_number():
    found = compare_outputs([torch.ones(1)], [], None)

    assert (found.within, found.detail) == (False, "0 outputs instead of 1")


def test_nan_equals_nan_and_small_floats_are_compared():
    nan = torch.tensor([float("nan"), 1.0])
    small = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)

    assert compare_outputs([nan, small], [nan.clone(), small.clone()], None).within
    assert judge([small], [small], reference=None, tolerance=None).finite


def test_steps_have_files_of_their_own():
    first, second = (outputs_file("d", "abc", step) for step in ("decode", "prefill"))

    assert outputs_file("d", "abc", None).name == "abc.pt"
    assert first != second


@pytest.mark.parametrize("value", [True, 3, 2.5])
def test_numbers_are_outputs_too(value):
    (tensor,) = _tensors([[value]])
    assert tensor.item() == value
