"""TraceLens' EventReplay on opreplay's engine: its scripts come in, opreplay's replays go out."""

from __future__ import annotations

from opreplay.trace.event_dicts import read_unique_args
from opreplay.tracelens.custom_inits import (
    CustomInit,
    MoeRoutingInit,
    PagedAttentionInit,
    extract_batch_context,
    list_custom_inits,
    register_custom_init,
    remove_custom_init,
)
from opreplay.tracelens.event_replayer import EventReplayer, benchmark_func, register_namespace
from opreplay.tracelens.replay_ir import TensorCfg, read_replay_ir

__all__ = [
    "CustomInit",
    "EventReplayer",
    "MoeRoutingInit",
    "PagedAttentionInit",
    "TensorCfg",
    "benchmark_func",
    "extract_batch_context",
    "list_custom_inits",
    "read_replay_ir",
    "read_unique_args",
    "register_custom_init",
    "register_namespace",
    "remove_custom_init",
]
