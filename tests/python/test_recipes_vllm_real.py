"""Recipes on vLLM's own CPU operators, where vLLM is installed."""

import importlib.util
from pathlib import Path

import pytest

from opreplay import Selection, replay
from opreplay.options import ReplayOptions
from opreplay.stat import TimingOptions

TRACE = Path(__file__).parents[3] / "shared/traces/local__vllm-cpu-dense-qwen2.json.gz"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.skipif(not TRACE.exists(), reason="the recorded trace is not here")
def test_every_native_operator_of_a_vllm_trace_runs_on_the_cpu():
    options = ReplayOptions(device="cpu", threads=1, timing=TimingOptions(time_s=0.02, cold=False))
    rows = replay(TRACE, Selection(match="^_C::"), options=options).rows
    assert len(rows) == 19
    assert {row.status for row in rows} == {"ok"}, [row.detail for row in rows]
    told = {row.op: row.recipe for row in rows}
    assert "create_onednn_mm_handler" in told["_C::onednn_mm"]
    assert "get_scheduler_metadata" in told["_C::cpu_attention_with_kv_cache"]
