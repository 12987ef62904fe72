"""Likely values of string arguments, which the profiler drops: a name comes in, a text goes out."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from opreplay.resolve.call import TensorSpec

__all__ = ["string_default", "vllm_cpu_isa"]

Tensors = Mapping[str, TensorSpec]

_FP8_BYTES = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "uint8"})


def string_default(
    table: Mapping[str, Any], operator: str, name: str, tensors: Tensors
) -> str | None:
    """Returns the text to take for a string argument, or None if nothing here tells one.

    Args:
        table: The data file: ``strings_of_operators`` beats ``strings``.
        operator: Name of the operator.
        name: Name of the argument.
        tensors: The call's tensors so far, by argument name.
    """
    entry: Any = (
        table["strings_of_operators"].get(operator, {}).get(name, table["strings"].get(name))
    )
    if isinstance(entry, dict):
        return _ASKED[entry["ask"]](tensors)
    return None if entry is None else str(entry)


def _kv_cache_dtype(tensors: Tensors) -> str:
    """The cache's own dtype tells: bytes and fp8 are a quantised cache, all else is "auto"."""
    for name in ("key_cache", "kv_cache", "k_cache", "src_cache"):
        if name in tensors:
            dtype = str(tensors[name].dtype).removeprefix("torch.")
            if dtype == "uint8" and tensors[name].dims[-1:] == (656,):
                return "fp8_ds_mla"
            if dtype.startswith("float8_e5m2"):
                return "fp8_e5m2"
            return "fp8" if dtype in _FP8_BYTES else "int8" if dtype == "int8" else "auto"
    return "auto"


def _mfma_type(tensors: Tensors) -> str:
    return "fp8" if _kv_cache_dtype(tensors).startswith("fp8") else "f16"


def _scoring_func(tensors: Tensors) -> str:
    return "sigmoid" if "correction_bias" in tensors else "softmax"


def _vllm_cpu_isa(tensors: Tensors) -> str:
    """Reads what the choice depends on off the cache."""
    cache = tensors.get("key_cache")
    dims = cache.dims if cache is not None else ()
    return vllm_cpu_isa(
        torch.bfloat16 if cache is None else cache.dtype,
        dims[-1] if dims else 32,
        dims[-2] if len(dims) >= 2 else 32,
    )


def vllm_cpu_isa(cache_dtype: torch.dtype, head_size: int, block_size: int) -> str:
    """Returns the instruction set that vLLM's CPU attention would choose on this machine.

    The rule of ``_get_attn_isa`` in vllm/v1/attention/backends/cpu_attn.py: an instruction set that
    the CPU lacks kills the process, so the recording machine's is never taken.
    """
    if head_size % 32 != 0 and head_size % 16 == 0:
        return "vec16"
    if cache_dtype == torch.bfloat16 and block_size % 32 == 0 and _amx_supported():
        return "amx"
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return "neon"
    if block_size % 32 != 0:
        return "vec16"
    return {"s390x": "vxe", "ppc64le": "vsx"}.get(machine, "vec")


def _vllm_cpu_moe_isa(tensors: Tensors) -> str:
    """Returns what vLLM's fused experts would run on here; only bfloat16 has more than vectors.

    The experts' classes in vllm/model_executor/layers/fused_moe/experts/cpu_moe.py.
    """
    rows = tensors.get("input")
    if rows is None or rows.dtype != torch.bfloat16:
        return "vec"
    if _amx_supported():
        return "amx"
    machine = platform.machine().lower()
    return {"aarch64": "neon", "arm64": "neon", "ppc64le": "vsx"}.get(machine, "vec")


def _amx_supported() -> bool:
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(ask and ask())


_ASKED: dict[str, Callable[[Tensors], str]] = {
    "kv_cache_dtype": _kv_cache_dtype,
    "mfma_type": _mfma_type,
    "scoring_func": _scoring_func,
    "vllm_cpu_isa": _vllm_cpu_isa,
    "vllm_cpu_moe_isa": _vllm_cpu_moe_isa,
}
