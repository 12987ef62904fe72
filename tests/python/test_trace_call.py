"""Tests the name that a call keeps in every run and on every machine."""

from __future__ import annotations

import gc

import pytest

from opreplay.trace import RecordedArgument, signature_of
from opreplay.trace.call import RecordedTimes
from opreplay.trace.collector import collector_paused
from opreplay.trace.columns import from_columns


def test_the_signature_is_the_same_in_every_version():
    arguments = (RecordedArgument("float", (2, 3), (3, 1), ""), RecordedArgument("", (), (), ""))
    # sha256 of ["aten::mm",[["float",[2,3],[3,1],""],["",[],[],""]]]
    assert signature_of("aten::mm", arguments) == "fb48ecb995a067c0"


@pytest.mark.parametrize(
    "argument",
    [RecordedArgument("\ud800", (), (), ""), RecordedArgument("float", (2**70,), (1,), "")],
    ids=["lone surrogate", "huge size"],
)
def test_odd_arguments_have_a_signature(argument):
    assert len(signature_of("aten::mm", (argument,))) == 16


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_paused_collector_goes_on_after_an_error():
    with pytest.raises(ValueError, match="inside"), collector_paused():
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()


def test_columns_make_what_the_class_makes():
    columns = {"median": [1.0, 2.0], "total": iter([3.0, 4.0]), "self_total": (5.0, 6.0)}
    made = from_columns(RecordedTimes, 2, **columns)
    assert made == [RecordedTimes(1.0, 3.0, 5.0), RecordedTimes(2.0, 4.0, 6.0)]


def test_columns_that_do_not_fit_the_class_are_refused():
    with pytest.raises(TypeError, match="RecordedTimes has the fields"):
        from_columns(RecordedTimes, 1, median=[1.0], total=[1.0])
    with pytest.raises(ValueError, match="a value for each object"):
        from_columns(RecordedTimes, 2, median=[1.0], total=[1.0, 1.0], self_total=[1.0, 1.0])


def test_an_error_in_a_column_comes_through():
    with pytest.raises(ZeroDivisionError):
        from_columns(RecordedTimes, 1, median=(1 / n for n in [0]), total=[1.0], self_total=[1.0])
