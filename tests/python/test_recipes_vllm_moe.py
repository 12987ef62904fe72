"""A recorded step of an MoE model on vLLM's CPU engine: its fused layer, and all of it."""

import importlib.util
import platform
from pathlib import Path

import moe_rules as rule
import pytest
import torch
from made_calls import f32, i32, tensor
from moe_schemas import VLLM, registered, resolved_of

from opreplay import Selection, read_trace, replay
from opreplay.inputs import make_inputs
from opreplay.options import ReplayOptions
from opreplay.replay import make_plan
from opreplay.resolve.resolver import Resolver
from opreplay.stat import TimingOptions
from opreplay.sweep import read_setting, sweep

TRACE = Path(__file__).parents[1] / "data" / "vllm_moe.json.gz"
VLLM_IS_HERE = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(VLLM_IS_HERE, reason="vLLM registers its own operators")
@pytest.mark.parametrize("tokens", [224, 4])
def test_the_fused_layer_of_a_recorded_step_gets_a_routing(tokens):
    (schema,) = (form for form in VLLM if form.startswith("_C::cpu_fused_moe"))
    recorded = [
        call
        for call in read_trace(TRACE).calls("_C::cpu_fused_moe")
        if call.arguments[0].dims == (tokens, 256)
    ]
    assert len(recorded) == 2
    with registered(schema):
        resolved = Resolver(device="cpu").resolve(recorded[0])
    made = make_inputs(resolved, device="cpu", seed=0, memory_budget=1 << 30)
    values = dict(zip([a.name for a in resolved.arguments], made.arguments, strict=True))
    rule.topk(values["topk_id"], 8)
    rule.topk_weights(values["topk_weights"])
    assert values["topk_weights"].dtype is torch.float32
    assert values["act"] == "silu"
    assert made.recipe.startswith(f"{tokens} tokens of 2 of 8 experts, uniform; ")


@pytest.mark.skipif(VLLM_IS_HERE, reason="vLLM registers its own operators")
@pytest.mark.parametrize(
    ("dtype", "machine", "amx", "isa"),
    [
        (torch.bfloat16, "x86_64", True, "amx"),
        (torch.bfloat16, "x86_64", False, "vec"),
        (torch.bfloat16, "aarch64", False, "neon"),
        (torch.float32, "x86_64", True, "vec"),
    ],
)
def test_fused_experts_run_on_what_vllm_would_choose_here(
    tmp_path, monkeypatch, dtype, machine, amx, isa
):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    with registered(*(form for form in VLLM if form.startswith("_C::cpu_fused_moe"))):
        resolved = resolved_of(
            tmp_path, "_C::cpu_fused_moe", output=tensor(dtype, 4, 32), input=tensor(dtype, 4, 32),
            w13=tensor(dtype, 8, 64, 32), w2=tensor(dtype, 8, 32, 32), topk_weights=f32(4, 2),
            topk_id=i32(4, 2), skip_weighted=False,
        )  # fmt: skip
    assert resolved.arguments[-1].value == isa


@pytest.mark.skipif(not VLLM_IS_HERE, reason="vLLM is not installed")
def test_every_native_operator_of_an_moe_step_runs_and_layers_need_their_engine():
    options = ReplayOptions(device="cpu", threads=1, timing=TimingOptions(time_s=0.02, cold=False))
    rows = replay(TRACE, Selection(match="^(_C|vllm)::"), options=options).rows
    native = [row for row in rows if row.op.startswith("_C::")]
    assert {row.status for row in native} == {"ok"}, [row.detail for row in native]
    assert {row.reason for row in rows if row not in native} == {"needs_engine_context"}
    fused = [row for row in native if row.op == "_C::cpu_fused_moe"]
    assert len(fused) == 2
    assert all(" of 2 of 8 experts, uniform; " in row.recipe for row in fused)


@pytest.mark.skipif(not VLLM_IS_HERE, reason="vLLM is not installed")
@pytest.mark.parametrize(
    ("op", "settings"),
    [
        ("_C::cpu_attention_with_kv_cache", ["num_seqs=1,16", "kv_len=64,1k"]),
        ("_C::cpu_fused_moe", ["num_tokens=1,16", "num_experts=4,32", "moe.distribution=zipf"]),
    ],
)
def test_vllms_own_operators_run_at_every_point_of_a_sweep(op, settings):
    options = ReplayOptions(device="cpu", threads=1, timing=TimingOptions(time_s=0.02, cold=False))
    plan = make_plan(TRACE, Selection(ops=(op,)), options=options)
    rows = replay(sweep(plan.calls, map(read_setting, settings)), options=options).rows
    assert len(rows) == 4 * len(plan.calls)
    assert {row.status for row in rows} == {"ok"}, [row.detail for row in rows]
