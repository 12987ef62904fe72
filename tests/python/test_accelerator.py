"""What an accelerator tells, by management libraries that answer as their documents say."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from opreplay.accelerator import describe_accelerator
from opreplay.environment import describe_environment

H200 = SimpleNamespace(
    name="H200", major=9, minor=0, total_memory=7, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=1
)
MI300X = SimpleNamespace(
    name="MI300X", gcnArchName="gfx942", pci_domain_id=1, pci_bus_id=0xC, pci_device_id=0
)


@pytest.fixture
def found(monkeypatch):
    """Has torch find a device, and no management library unless a test adds one."""

    def find(properties):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        for library in ("pynvml", "amdsmi"):
            monkeypatch.setitem(sys.modules, library, None)

    return find


class Unanswered(Exception):
    """What both libraries raise."""


def nvml(**functions):
    def handle(address):
        if address != "0000:3b:01.0":
            raise Unanswered
        return "handle"

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": handle,
        "nvmlSystemGetDriverVersion": lambda: "580.65",
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1755,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    }
    return SimpleNamespace(NVMLError=Unanswered, NVML_CLOCK_SM=1, **(answers | functions))


def refuse(*arguments):
    raise Unanswered


def test_a_cpu_tells_nothing():
    block = describe_environment("cpu")
    assert (block.device_name, block.device_driver, block.device_cache) == (None, None, None)


def test_torch_alone_tells_the_model(found):
    found(H200)
    assert describe_accelerator("cuda:0") == {
        "device_name": "H200", "device_capability": "9.0", "device_memory": 7, "device_cache": None
    }  # fmt: skip
    found(MI300X)
    assert describe_accelerator("cuda:0")["device_capability"] == "gfx942"


def test_nvml_tells_driver_clocks_in_mhz_and_power_cap_in_watts(found, monkeypatch):
    found(H200)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())

    block = describe_environment("cuda:0")

    assert block.device_driver == "580.65"
    assert (block.device_clock, block.device_max_clock) == (1755, 1980)
    assert block.device_power_cap == 700


def test_a_question_that_the_driver_refuses_leaves_one_field_empty(found, monkeypatch):
    found(H200)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetEnforcedPowerLimit=refuse))

    told = describe_accelerator("cuda:0")

    assert (told["device_power_cap"], told["device_max_clock"]) == (None, 1980)


def test_amdsmi_tells_the_same_in_its_units(found, monkeypatch):
    found(MI300X)
    amdsmi = SimpleNamespace(
        AmdSmiException=Unanswered,
        AmdSmiClkType=SimpleNamespace(GFX="gfx"),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf={"0001:0c:00.0": "handle"}.__getitem__,
        amdsmi_get_clock_info=lambda handle, kind: {"clk": 1300, "max_clk": "N/A"},
        amdsmi_get_power_cap_info=lambda handle: {"power_cap": 750_000_000},
        amdsmi_get_gpu_driver_info=refuse,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=refuse))
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)

    told = describe_accelerator("cuda:0")

    assert (told["device_clock"], told["device_max_clock"]) == (1300, None)
    assert (told["device_power_cap"], told["device_driver"]) == (750, None)


def test_libraries_without_their_driver_tell_nothing(found, monkeypatch):
    found(H200)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=refuse))
    monkeypatch.setitem(
        sys.modules, "amdsmi", SimpleNamespace(AmdSmiException=Unanswered, amdsmi_init=refuse)
    )
    assert "device_driver" not in describe_accelerator("cuda:0")
