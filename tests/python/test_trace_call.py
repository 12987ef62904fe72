"""Tests the name that a call keeps in every run and on every machine."""

from __future__ import annotations

import gc

import pytest

from opreplay.trace import RecordedArgument, signature_of
from opreplay.trace.collector import collector_paused


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
