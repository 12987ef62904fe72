"""The environment block: what it names and what it keeps to itself."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

import opreplay
from opreplay import environment
from opreplay.environment import default_device, describe_environment, usable_device


def test_versions_are_those_of_the_libraries():
    block = describe_environment("cpu").to_json()

    assert block["torch"] == torch.__version__
    assert block["python"] == sys.version.split()[0]
    assert block["opreplay"] == importlib.metadata.version("opreplay")
    assert block["libraries"]["numpy"] == importlib.metadata.version("numpy")


def test_the_machine_is_described():
    block = describe_environment("cpu", threads=3)

    assert block.threads == 3
    assert block.cpu
    assert block.cpus >= 1
    assert block.timer_ns > 0
    assert (block.device, block.device_name, block.device_memory) == ("cpu", None, None)


def test_threads_are_torchs_own_unless_given():
    assert describe_environment("cpu").threads == torch.get_num_threads()


def test_variables_that_steer_torch_are_named_and_secrets_are_not(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("HOME_OF_SOMEBODY", "x")

    variables = describe_environment("cpu").variables

    assert variables["OMP_NUM_THREADS"] == "7"
    assert not {"VLLM_API_KEY", "HOME_OF_SOMEBODY"} & variables.keys()


def test_the_default_device_is_the_accelerator_if_there_is_one(monkeypatch):
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    assert default_device() == "cuda"
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert default_device() == "cpu"


def test_a_system_that_says_little_leaves_fields_empty(monkeypatch):
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    monkeypatch.setattr(os, "sysconf_names", {})
    monkeypatch.setattr(environment.Path, "exists", lambda self: False)

    assert environment._usable_cpus() >= 1
    assert environment._physical_memory() is None
    assert environment._governor() is None
    assert environment._cpu_model()


def test_an_extension_built_for_another_torch_is_refused_with_the_remedy(monkeypatch):
    from opreplay import _C

    monkeypatch.setattr(_C, "build_torch_version", "1.0.0")
    monkeypatch.setitem(sys.modules, "opreplay._C", _C)
    with pytest.raises(ImportError, match=r"pip install .*opreplay \(it was built for torch 1\.0"):
        opreplay._load_extension()
    vars(opreplay)["_C"] = _C


def test_an_extension_that_cannot_be_loaded_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "opreplay._C", None)
    with pytest.raises(ImportError, match=r"was not built for torch .*pip install"):
        opreplay._load_extension()


def test_the_package_has_no_other_names():
    assert callable(opreplay.do_bench)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = opreplay.nothing


def test_a_device_that_torch_cannot_use_is_refused_in_a_sentence():
    assert usable_device("cpu") == "cpu"
    with pytest.raises(
        ValueError, match=r"^torch 2\S+ cannot use the device 'foo' here \(Expected"
    ):
        usable_device("foo")
    if not torch.xpu.is_available():
        with pytest.raises(ValueError, match=r"cannot use the device 'xpu' here \("):
            usable_device("xpu")
