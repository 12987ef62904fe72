"""What an accelerator and its driver tell: a device comes in, fields of the environment go out.

torch knows the model. Driver, clocks and power cap come from the vendor's management library, where
its Python package is installed: nvidia-ml-py (NVML) or amdsmi.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["describe_accelerator"]

_MICROWATTS = 1_000_000


def describe_accelerator(device: str) -> dict[str, Any]:
    """Returns the fields of `Environment` that begin with ``device_``.

    Args:
        device: Where calls run, as torch names it.
    """
    import torch

    from opreplay import _C

    fields = dict.fromkeys(("device_name", "device_capability", "device_memory"))
    module = getattr(torch, torch.device(device).type, None)
    properties = getattr(module, "get_device_properties", None)
    if properties is None:
        return fields
    found = properties(device)
    capability = getattr(found, "gcnArchName", None)  # AMD's name says more than major.minor
    if capability is None and hasattr(found, "major"):
        capability = f"{found.major}.{found.minor}"
    return {
        "device_name": found.name,
        "device_capability": capability,
        "device_memory": getattr(found, "total_memory", None),
        "device_cache": _C.device_cache_bytes(device),
        **_managed(found),
    }


def _managed(properties: Any) -> dict[str, Any]:
    """What the management library tells of the device with these properties of torch."""
    if not hasattr(properties, "pci_bus_id"):
        return {}
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    address = "{:04x}:{:02x}:{:02x}.0".format(*place)
    for name, ask in (("pynvml", _ask_nvml), ("amdsmi", _ask_amdsmi)):
        try:
            library = importlib.import_module(name)
        except (ImportError, OSError, KeyError):  # amdsmi raises the last two without ROCm
            continue
        if answer := ask(library, address):
            return answer
    return {}


def _ask_nvml(nvml: ModuleType, address: str) -> dict[str, Any]:
    def told(question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except nvml.NVMLError:  # no NVIDIA driver, or a question that this device does not answer
            return None

    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
    except nvml.NVMLError:
        return {}
    milliwatts = told(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return {
        "device_driver": told(nvml.nvmlSystemGetDriverVersion),
        "device_clock": told(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        "device_max_clock": told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        "device_power_cap": None if milliwatts is None else round(milliwatts / 1000),
    }


def _ask_amdsmi(amdsmi: ModuleType, address: str) -> dict[str, Any]:
    def told(question: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        try:
            answers = question(*arguments)
        except amdsmi.AmdSmiException:
            return {}
        return {name: answer for name, answer in answers.items() if answer != "N/A"}

    try:
        amdsmi.amdsmi_init()
        handle = amdsmi.amdsmi_get_processor_handle_from_bdf(address)
    except amdsmi.AmdSmiException:
        return {}
    clocks = told(amdsmi.amdsmi_get_clock_info, handle, amdsmi.AmdSmiClkType.GFX)
    microwatts = told(amdsmi.amdsmi_get_power_cap_info, handle).get("power_cap")
    return {
        "device_driver": told(amdsmi.amdsmi_get_gpu_driver_info, handle).get("driver_version"),
        "device_clock": clocks.get("clk", clocks.get("cur_clk")),  # the latter before ROCm 6.2
        "device_max_clock": clocks.get("max_clk"),
        "device_power_cap": None if microwatts is None else round(microwatts / _MICROWATTS),
    }
