"""Tests arguments of recorded calls: each form that profilers have written."""

from __future__ import annotations

import pytest
from kineto_events import TINY_TRACE, calls_of, event, op, trace_of

from opreplay.trace import RecordedArgument, read_trace

R44_TYPES = (
    "float",
    "Float",
    "c10::BFloat16",
    "BFloat16",
    "int",
    "unsigned int",
    "long",
    "long int",
    "long long",
    "c10::Half",
    "double",
    "bool",
    "unsigned char",
    "signed char",
    "c10::Float8_e4m3fn",
    "TensorList",
)


def arguments_of(tmp_path, **lists):
    return calls_of(tmp_path, op(**lists))["aten::mm"].arguments


def test_the_four_lists_become_arguments_in_order(tmp_path):
    assert arguments_of(
        tmp_path,
        types=["float", "Scalar", "ScalarList", ""],
        dims=[[2, 3], [], [], []],
        strides=[[3, 1], [], [], []],
        values=["", "1.", "[1, 2]", ""],
    ) == (
        RecordedArgument("float", (2, 3), (3, 1), ""),
        RecordedArgument("Scalar", (), (), "1."),
        RecordedArgument("ScalarList", (), (), "[1, 2]"),
        RecordedArgument("", (), (), ""),
    )


def test_r35_missing_strides_and_values_are_none(tmp_path):
    (argument,) = arguments_of(tmp_path, types=["float"], dims=[[2]])
    assert argument == RecordedArgument("float", (2,), None, None)


def test_r35_missing_strides_alone_are_none(tmp_path):
    (argument,) = arguments_of(tmp_path, types=["Scalar"], dims=[[]], values=["3"])
    assert argument == RecordedArgument("Scalar", (), None, "3")


@pytest.mark.parametrize("name", R44_TYPES)
def test_r44_type_names_pass_through_unchanged(tmp_path, name):
    (argument,) = arguments_of(tmp_path, types=[name], dims=[[4]], strides=[[1]], values=[""])
    assert argument.type == name


def test_r48_a_tensor_list_has_sizes_per_element(tmp_path):
    (argument,) = arguments_of(
        tmp_path,
        types=["TensorList"],
        dims=[[[2, 3], [], [0]]],
        strides=[[[3, 1], [], [1]]],
        values=[""],
    )
    assert argument.dims == ((2, 3), (), (0,))
    assert argument.strides == ((3, 1), (), (1,))


def test_a_list_of_one_scalar_tensor_differs_from_an_empty_one(tmp_path):
    one = arguments_of(tmp_path, types=["TensorList"], dims=[[[]]])
    none = arguments_of(tmp_path, types=["TensorList"], dims=[[]])
    assert (one[0].dims, none[0].dims) == (((),), ())


def test_r48_a_tensor_list_of_31_keeps_its_type_and_loses_its_dims():
    lists = [call.arguments[0] for call in read_trace(TINY_TRACE).calls("aten::cat")]
    assert [argument.type for argument in lists[:2]] == ["TensorList", "TensorList"]
    assert lists[0].dims == ((4, 16), (4, 16))
    assert lists[1].dims == ()


def test_r42_a_scalar_list_of_31_loses_type_and_value():
    call = next(iter(read_trace(TINY_TRACE).calls("aten::zeros")))
    assert call.arguments[0] == RecordedArgument("", (), (), "")


def test_lists_of_unequal_length_fill_with_dropped_arguments(tmp_path):
    arguments = arguments_of(
        tmp_path,
        types=["float", "float"],
        dims=[[1], [2]],
        strides=[[1], [1]],
        values=["", "", "(1,1)"],
    )
    assert arguments[2] == RecordedArgument("", (), (), "(1,1)")


def test_no_inputs_are_no_arguments(tmp_path):
    assert arguments_of(tmp_path, types=[], dims=[]) == ()


def test_entries_that_are_no_strings_become_text(tmp_path):
    (first, second) = arguments_of(
        tmp_path, types=["Scalar", None], dims=[[], []], values=[3, None]
    )
    assert (first.value, second.type, second.value) == ("3", "", "")


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        ({}, "records no types and no dims for this call"),
        ({"types": ["float"]}, "records no types and no dims"),
        ({"dims": [[1]]}, "the dims of this call, but not its types"),
        ({"types": ["float"], "dims": [3]}, "no lists of integers"),
        ({"types": ["float"], "dims": [["a"]]}, "no lists of integers"),
        ({"types": ["float"], "dims": [[True]]}, "no lists of integers"),
        ({"types": ["float"], "dims": [[1]], "strides": [{}]}, "no lists of integers"),
    ],
    ids=["nothing", "types", "dims", "number", "text", "boolean", "odd strides"],
)
def test_a_call_without_readable_lists_has_no_arguments_and_says_why(tmp_path, lists, sentence):
    (group,) = trace_of(tmp_path, op(**lists)).groups()
    assert group.call.arguments is None
    assert sentence in group.unrecorded


def test_old_input_dims_are_not_enough_and_the_remedy_is_named(tmp_path):
    old = event("aten::add", cat="Operator", tid="300")
    old["args"] = {"Input dims": [[1]], "Input type": []}
    (group,) = trace_of(tmp_path, old).groups()
    assert group.call.arguments is None
    assert "record_shapes=True" in group.unrecorded


def test_a_readable_call_has_nothing_unrecorded(tmp_path):
    (group,) = trace_of(tmp_path, op(types=[], dims=[])).groups()
    assert group.unrecorded is None
