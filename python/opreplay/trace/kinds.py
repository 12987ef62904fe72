"""What a CPU event stands for: its name comes in, one of a closed list of kinds goes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from opreplay.trace.call import Reason

__all__ = ["REASON_OF_KIND", "Kind", "classify"]

Kind = Literal[
    "operator",
    "engine_context",
    "collective",
    "triton",
    "compiled_region",
    "autograd",
    "range",
]
"""`operator` has a dispatcher name and can be replayed; `range` is a Python or record_function
range; the others are explained by `REASON_OF_KIND`."""

REASON_OF_KIND: Mapping[Kind, Reason | None] = MappingProxyType(
    {
        "operator": None,
        "engine_context": "needs_engine_context",
        "collective": "collective",
        "triton": "not_an_operator",
        "compiled_region": "not_an_operator",
        "autograd": "not_an_operator",
        "range": "not_an_operator",
    }
)
"""Why an event of a kind is not replayed; None for an operator."""

_PATTERNS: tuple[tuple[Kind, str], ...] = (
    # Wrappers that look up the layer, its cache and its metadata by a name that is not recorded.
    ("engine_context", r"vllm::unified_\w+"),
    ("engine_context", r"vllm::moe_forward\w*"),
    ("engine_context", r"vllm::(?:gdn_attention|mamba_mixer2?|short_conv|linear_attention)\w*"),
    ("engine_context", r"sglang_profiler::.*"),
    ("collective", r"(?:c10d|_c10d_functional|c10d_functional|symm_mem)::.*"),
    ("collective", r"record_param_comms"),
    ("collective", r"(?:nccl|gloo|hccl|mpi|ucc|xccl):.*"),
    ("collective", r"(?:vllm|sglang)::\w*(?:all_reduce|all_gather|reduce_scatter|all_to_all)\w*"),
    ("collective", r"_C_custom_ar::.*"),
    ("collective", r"torch\.distributed\..*"),
    ("collective", r"torch::distributed::.*"),
    ("triton", r"triton_\w+"),
    ("compiled_region", r"Torch-Compiled Region.*"),
    ("compiled_region", r"TorchDynamo Cache Lookup"),
    ("compiled_region", r"AOTDispatcher Runtime Wrapper.*"),
    ("compiled_region", r"Pregraph bytecode"),
    ("compiled_region", r"Compiled(?:Function|FxGraph)\w*"),
    ("compiled_region", r"## Call CompiledFxGraph .*"),
    ("autograd", r"autograd::engine::.*"),
    ("autograd", r"torch::autograd::.*"),
    ("autograd", r"torch::jit::.*"),
    ("autograd", r"\w+Backward\w*"),
    ("autograd", r"<(?:forward|backward) op>"),
    ("operator", r"[A-Za-z_]\w*::\w+(?:\.\w+)?"),
)
"""Kinds by name, the first that matches whole; no match is a `range`."""

_ANY = re.compile("|".join(f"({pattern})" for _, pattern in _PATTERNS))


def classify(name: str) -> Kind:
    """Returns the kind of the CPU event `name`."""
    match = _ANY.fullmatch(name)
    return "range" if match is None else _PATTERNS[(match.lastindex or 0) - 1][0]
