"""Sweeps: every point of a call is one that the rules accept, or a row that says why it is not."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import engine_schemas
import moe_rules
import moe_schemas
import orjson
import pytest
import rules
import torch
from kineto_events import TINY_TRACE
from made_calls import f32, foreign_call, i32, tensor

from opreplay.attempt import Attempt
from opreplay.cli import main
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall, PlannedRecipe, PlannedTensor, planned
from opreplay.recipes import find_recipe
from opreplay.recipes.parameters import own_parameters
from opreplay.replay import replay
from opreplay.report.results_file import read_results
from opreplay.stat import TimingOptions
from opreplay.sweep import read_setting, sweep
from opreplay.trace import RecordedTimes, Skipped

BF16, F16, I8 = torch.bfloat16, torch.float16, torch.int8
OPTIONS = ReplayOptions(
    device="cpu", isolation=False, timing=TimingOptions(time_s=0.002, cold=False)
)


@pytest.fixture(scope="module", autouse=True)
def engines():
    with engine_schemas.registered():
        yield


def call_of(op, outcome=None, /, **values):
    """A planned call of an operator without a schema; `outcome` takes the place of what runs."""
    if outcome is None:
        made = foreign_call(op, **values)
        recipe = find_recipe(op)
        chosen = recipe and PlannedRecipe(
            recipe.name, tuple(own_parameters(recipe.parameters, {}).items())
        )
        outcome = planned(made, chosen)
    times = RecordedTimes(5.0, 5.0, 5.0)
    return PlannedCall(
        op=op, signature="abc", step=None, parent=None, leaf=True, count=3, host=times,
        device=None, kernels=(), in_graph=False, batch=None, outcome=outcome,
    )  # fmt: skip


def with_schema(call):
    """The call with the argument types of the operator that is registered."""
    (schema,) = torch._C._jit_get_schemas_for_operator(call.op)
    assert [a.name for a in schema.arguments] == [a.name for a in call.outcome.arguments]
    types = [str(a.type) for a in schema.arguments]
    arguments = tuple(
        replace(a, type=t) for a, t in zip(call.outcome.arguments, types, strict=True)
    )
    return replace(call, outcome=replace(call.outcome, arguments=arguments, schema=str(schema)))


def points(call, *settings):
    return sweep([call], map(read_setting, settings)).calls


def shapes(point):
    assert not isinstance(point.outcome, Skipped), point.outcome
    return {
        a.name: a.value.dims if isinstance(a.value, PlannedTensor) else a.value
        for a in point.outcome.arguments
    }


def inputs_of(point):
    """What an operator would be given, by argument name."""
    attempt = Attempt(OPTIONS, device="cpu")
    resolved = attempt.resolve(point)
    assert not isinstance(resolved, Skipped), resolved
    made = attempt.prepare(resolved)
    assert not isinstance(made, Skipped), made
    names = [argument.name for argument in resolved.arguments]
    return dict(zip(names, made.inputs.arguments, strict=True)), made.inputs


def paged(op="_C::paged_attention_v1", **more):
    call = call_of(
        op, out=tensor(F16, 3, 4, 64), **more, query=tensor(F16, 3, 4, 64),
        key_cache=tensor(F16, 40, 2, 8, 16, 8), value_cache=tensor(F16, 40, 2, 64, 16),
        num_kv_heads=2, scale=0.125, block_tables=i32(3, 10), seq_lens=i32(3), block_size=16,
        max_seq_len=150, alibi_slopes=None, kv_cache_dtype="auto", k_scale=f32(1),
        v_scale=f32(1), tp_rank=0, blocksparse_local_blocks=0, blocksparse_vert_stride=0,
        blocksparse_block_size=64, blocksparse_head_sliding_step=0,
    )  # fmt: skip
    return with_schema(call)


def test_paged_attention_is_accepted_at_every_point():
    made = points(paged(), "num_seqs=1,8,64", "kv_len=1k,250", "num_heads=4,8")
    assert len(made) == 12
    for point in made:
        wanted = dict(point.point.settings)
        sequences = int(wanted["num_seqs"])
        keys = {"1k": 1024, "250": 250}[wanted["kv_len"]]
        arguments, found = inputs_of(point)
        assert arguments["query"].shape == (sequences, int(wanted["num_heads"]), 64)
        assert arguments["out"].shape == arguments["query"].shape
        assert arguments["max_seq_len"] == keys
        assert arguments["seq_lens"].tolist() == [keys] * sequences
        rules.block_table(
            arguments["block_tables"].tolist(), [keys] * sequences, block_size=16,
            blocks=arguments["key_cache"].shape[0],
        )  # fmt: skip
        assert arguments["value_cache"].shape[0] == arguments["key_cache"].shape[0]
        assert arguments["block_tables"].shape[1] == math.ceil(keys / 16)
        assert f"{sequences} sequences, {sequences} queries, length {keys}" in found.recipe
        assert found.assumptions == ()


def test_rocm_paged_attention_is_accepted_at_every_point():
    parts = {n: f32(3, 4, 1) for n in ("exp_sums", "max_logits")}
    call = with_schema(
        call_of(
            "_rocm_C::paged_attention", out=tensor(F16, 3, 4, 64), **parts,
            tmp_out=tensor(F16, 3, 4, 1, 64), query=tensor(F16, 3, 4, 64),
            key_cache=tensor(F16, 40, 2, 8, 16, 8), value_cache=tensor(F16, 40, 2, 64, 16),
            num_kv_heads=2, scale=0.125, block_tables=i32(3, 10), seq_lens=i32(3),
            query_start_loc=i32(4), block_size=16, max_seq_len=150, alibi_slopes=None,
            kv_cache_dtype="auto", k_scale=f32(1), v_scale=f32(1), fp8_out_scale=None,
            mfma_type="f16",
        )
    )  # fmt: skip
    made = points(call, "num_seqs=1,8,64", "kv_len=1k,250")
    assert len(made) == 6
    for point in made:
        wanted = dict(point.point.settings)
        sequences, keys = int(wanted["num_seqs"]), {"1k": 1024, "250": 250}[wanted["kv_len"]]
        arguments, found = inputs_of(point)
        assert arguments["query_start_loc"].tolist() == list(range(sequences + 1))
        assert arguments["seq_lens"].tolist() == [keys] * sequences
        assert arguments["max_seq_len"] == keys
        rules.block_table(
            arguments["block_tables"].tolist(), [keys] * sequences, block_size=16,
            blocks=arguments["key_cache"].shape[0],
        )  # fmt: skip
        partitions = math.ceil(keys / 256)
        assert arguments["exp_sums"].shape == (sequences, 4, partitions)
        assert arguments["tmp_out"].shape == (sequences, 4, partitions, 64)
        assert found.assumptions == ()


def test_each_point_of_paged_attention_runs_on_the_reference_kernel():
    made = sweep([paged()], map(read_setting, ["num_seqs=1,5", "kv_len=32,100"]))
    rows = replay(made, options=OPTIONS).rows
    assert [r.status for r in rows] == ["ok"] * 4, [r.detail for r in rows]
    assert [str(r.point) for r in rows] == [
        "num_seqs=1 kv_len=32", "num_seqs=1 kv_len=100",
        "num_seqs=5 kv_len=32", "num_seqs=5 kv_len=100",
    ]  # fmt: skip
    assert len({r.signature for r in rows}) == 4
    assert {(r.point.call, r.count, r.host.median, r.step) for r in rows} == {("abc", 0, 0.0, None)}


def test_partitions_of_the_keys_follow_their_length():
    parts = {n: f32(3, 4, 1) for n in ("exp_sums", "max_logits")}
    call = paged("_C::paged_attention_v2", **parts, tmp_out=tensor(F16, 3, 4, 1, 64))
    (point,) = points(call, "num_seqs=2", "kv_len=1025")
    made = shapes(point)
    assert made["exp_sums"] == made["max_logits"] == (2, 4, 3)  # 512 keys each
    assert made["tmp_out"] == (2, 4, 3, 64)


def test_without_a_key_length_sequences_keep_the_blocks_that_they_could_have():
    (point,) = points(paged(), "num_seqs=8")
    made = shapes(point)
    assert made["block_tables"] == (8, 10)
    assert made["key_cache"][0] == 80  # 10 of each
    assert made["max_seq_len"] == 150


def cpu_attention(tokens=5, sequences=5):
    cache = tensor(BF16, 64, 2, 32, 64)
    return call_of(
        "_C::cpu_attention_with_kv_cache",
        query=tensor(BF16, tokens, 4, 64), key_cache=cache, value_cache=cache,
        output=tensor(BF16, tokens, 4, 64), query_start_loc=i32(sequences + 1),
        seq_lens=i32(sequences), scale=0.125, causal=True, alibi_slopes=f32(4),
        sliding_window_size=-1, block_table=i32(sequences, 4), softcap=0.0,
        scheduler_metadata=tensor(I8, 4448), s_aux=None, dynamic_causal=None,
        k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
    )  # fmt: skip


def test_vllms_cpu_attention_changes_all_that_follows():
    (point,) = points(
        cpu_attention(), "num_seqs=3", "query_len=2", "kv_len=100", "num_heads=8", "num_kv_heads=4"
    )
    made = shapes(point)
    assert made["query"] == made["output"] == (6, 8, 64)
    assert made["key_cache"] == made["value_cache"] == (64, 4, 32, 64)
    assert (made["query_start_loc"], made["seq_lens"]) == ((4,), (3,))
    assert made["block_table"] == (3, 4)
    assert made["alibi_slopes"] == (8,)
    assert point.batch.generation.lengths == (100, 100, 100)
    assert point.batch.generation.queries == 6


@pytest.mark.parametrize(
    ("call", "settings", "sentence"),
    [
        (paged, ["num_blocks=10", "kv_len=1k"], "10 blocks do not hold 64 of each of 3 sequences"),
        (paged, ["num_heads=3"], "3 heads are no multiple of 2 key heads"),
        (paged, ["query_len=8", "kv_len=4"], "4 keys do not hold the 8 new ones of a sequence"),
        (lambda: cpu_attention(7, 5), ["num_seqs=2"],
         "7 queries of 5 sequences were recorded: set query_len"),
        (lambda: call_of("aiter::pa_fwd_asm", Q=f32(3, 4, 64), K=f32(40, 2, 8, 16, 8)),
         ["num_seqs=2"], "no symbols are declared for aiter::pa_fwd_asm: set its dims by argument"),
        (lambda: fused(w1_scale=f32(8, 64)), ["num_experts=4"],
         "nothing tells whether w1_scale of vllm::inplace_fused_experts follows num_experts"),
        (lambda: fused(topk_ids=i32(5, 2)), ["num_experts=4"],
         "rows of different numbers of tokens: hidden_states has 4, topk_ids has 5"),
    ],
)  # fmt: skip
def test_what_an_operator_cannot_take_is_a_row_with_the_reason(call, settings, sentence):
    (point,) = points(call(), *settings)
    assert point.outcome.reason == "schema_mismatch"
    assert sentence in point.outcome.detail


def fused(**more):
    values = {
        "hidden_states": f32(4, 32), "w1": f32(8, 64, 32), "w2": f32(8, 32, 32),
        "topk_weights": f32(4, 2), "topk_ids": i32(4, 2), **more,
    }  # fmt: skip
    return call_of("vllm::inplace_fused_experts", **values)


def cpu_moe():
    (schema,) = (form for form in moe_schemas.VLLM if form.startswith("_C::cpu_fused_moe("))
    call = call_of(
        "_C::cpu_fused_moe", output=tensor(BF16, 4, 32), input=tensor(BF16, 4, 32),
        w13=tensor(BF16, 8, 64, 32), w2=tensor(BF16, 8, 32, 32), w13_bias=tensor(BF16, 8, 64),
        w2_bias=None, topk_weights=f32(4, 2), topk_id=i32(4, 2), skip_weighted=False, act="silu",
        isa="vec",
    )  # fmt: skip
    return schema, call


def test_a_fused_layer_is_accepted_at_every_point_and_refuses_the_impossible():
    schema, call = cpu_moe()
    with moe_schemas.registered(schema):
        call = with_schema(call)
        settings = ["num_tokens=1,16", "num_experts=4,64", "top_k=2,8"]
        settings += ["moe.distribution=uniform,one_hot"]
        made = points(call, *settings)
        assert len(made) == 16
        refused = [p for p in made if isinstance(p.outcome, Skipped)]
        assert {dict(p.point.settings)["num_experts"] for p in refused} == {"4"}
        assert {p.outcome.detail for p in refused} == {
            "8 slots of a token do not find 4 distinct experts"
        }
        assert len(refused) == 4
        for point in made:
            if point in refused:
                continue
            wanted = dict(point.point.settings)
            tokens, experts = int(wanted["num_tokens"]), int(wanted["num_experts"])
            a, found = inputs_of(point)
            moe_rules.topk(a["topk_id"], experts)
            moe_rules.topk_weights(a["topk_weights"])
            assert a["topk_id"].shape == a["topk_weights"].shape == (tokens, int(wanted["top_k"]))
            assert a["input"].shape == a["output"].shape == (tokens, 32)
            assert a["w13"].shape == (experts, 64, 32)
            assert a["w2"].shape == (experts, 32, 32)
            assert a["w13_bias"].shape == (experts, 64)
            assert f", {wanted['moe.distribution']}" in found.recipe


@pytest.mark.parametrize("stage", [1, 2])
def test_sorted_tables_of_a_stage_are_as_long_as_the_engine_makes_them(stage):
    op = f"aiter::ck_moe_stage{stage}"
    (schema,) = (form for form in moe_schemas.AITER if form.startswith(f"{op}("))
    rows = {"hidden_states": f32(6, 32)} if stage == 1 else {"inter_states": f32(6, 2, 16)}
    out = f32(6, 2, 16) if stage == 1 else f32(6, 32)
    length = 6 * 2 + 8 * 4 - 2
    values = {
        **rows, "w1": f32(8, 32, 32), "w2": f32(8, 32, 16), "sorted_token_ids": i32(length),
        "sorted_expert_ids": i32(math.ceil(length / 4)), "num_valid_ids": i32(2), "out": out,
        "topk": 2, "block_m": 4, "sorted_weights": f32(length),
    }  # fmt: skip
    with moe_schemas.registered(schema):
        (form,) = torch._C._jit_get_schemas_for_operator(op)
        call = call_of(op, **{a.name: values.get(a.name, a.default_value) for a in form.arguments})
        call = with_schema(call)
        for point in points(call, "num_tokens=1,33", "num_experts=4,16", "top_k=1,3"):
            wanted = {name: int(value) for name, value in point.point.settings}
            tokens, top_k, experts = wanted["num_tokens"], wanted["top_k"], wanted["num_experts"]
            a, found = inputs_of(point)
            assert len(a["sorted_token_ids"]) == tokens * top_k + experts * 4 - top_k
            moe_rules.aiter_sorted(
                a["sorted_token_ids"], a["sorted_expert_ids"], a["num_valid_ids"], tokens=tokens,
                top_k=top_k, block=4, experts=experts, weights=a["sorted_weights"],
            )  # fmt: skip
            assert a["topk"] == top_k
            assert found.assumptions == ()
    longer = replace_dims(call, sorted_token_ids=(length + 5,))
    (point,) = points(longer, "num_tokens=1")
    assert "47 sorted ids are not what 6 tokens of 2 of 8 experts" in point.outcome.detail
    unblocked = replace(call.outcome, arguments=tuple(
        a for a in call.outcome.arguments if a.name != "block_m"
    ))  # fmt: skip
    (point,) = points(replace(call, outcome=unblocked), "num_tokens=1")
    assert point.outcome.detail == f"nothing tells the rows of a block of {op}"


def replace_dims(call, **dims):
    arguments = tuple(
        replace(a, value=replace(a.value, dims=dims[a.name])) if a.name in dims else a
        for a in call.outcome.arguments
    )
    return replace(call, outcome=replace(call.outcome, arguments=arguments))


@pytest.mark.parametrize(
    ("dims", "strides", "wanted", "made"),
    [
        ((3, 4), (4, 1), (3, 9), (9, 1)),
        ((3, 4), (1, 3), (5, 4), (1, 5)),  # transposed
        ((3, 4), (10, 1), (7, 4), (10, 1)),  # rows of a wider matrix
        ((3, 4), (10, 1), (3, 6), (12, 1)),
        ((3, 4), (0, 1), (5, 4), (0, 1)),  # expanded
        ((2, 3, 4), (12, 1, 3), (2, 5, 4), (20, 1, 5)),
        ((8, 1), (1, 1), (8, 4), (4, 1)),
    ],
)
def test_strides_keep_their_order_and_their_gaps(dims, strides, wanted, made):
    call = call_of("my::op", x=tensor(F16, *dims, strides=strides))
    settings = [f"x.{place}={size}" for place, size in enumerate(wanted)]
    (point,) = points(call, *settings)
    value = point.outcome.arguments[0].value
    assert (value.dims, value.strides) == (wanted, made)
    reach = 1 + sum((n - 1) * s for n, s in zip(wanted, made, strict=True))
    assert value.storage_numel == reach


def test_a_dim_without_elements_needs_no_storage():
    (point,) = points(call_of("my::op", x=f32(3, 4)), "x.0=0")
    assert point.outcome.arguments[0].value.storage_numel == 0


def test_what_a_resized_tensor_loses_is_an_assumption():
    x = replace(f32(3, 4), storage=(0, 4), true_elements=2)
    (point,) = points(call_of("my::op", x=x, y=x), "x.0=5")
    assert point.outcome.assumptions == (
        "x shared its storage with others; resized it has its own",
        "x had 2 true elements; resized it may not",
    )
    assert point.outcome.arguments[1].value.storage == (0, 4)


def test_dims_that_are_named_together_are_set_alike():
    call = call_of("my::mm", a=f32(3, 4), b=f32(4, 5))
    assert [shapes(point) for point in points(call, "a.1+b.0=2,6")] == [
        {"a": (3, 2), "b": (2, 5)}, {"a": (3, 6), "b": (6, 5)},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["rows=1"], r"vllm::inplace_fused_experts has no 'rows' to set; it has num_tokens, "
                     r"num_experts, top_k, moe.distribution, .*hidden_states.0 to .1"),
        (["w1.3=1"], "has no 'w1.3' to set"),
        (["num_tokens=0"], "num_tokens is '0', expected an integer from 1"),
        (["num_tokens=1.5k"], "num_tokens is '1.5k', expected an integer"),
        (["moe.distribution=flat"], "moe.distribution is 'flat', expected one of uniform"),
        (["w1.0=-1"], "w1.0 is '-1', expected an integer from 0"),
        (["top_k=1", "top_k=2"], "top_k is set twice"),
        (["top_k=1,1"], "has a value twice"),
        (["top_k="], "is not NAME=VALUE,VALUE"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        points(fused(), *settings)


def test_a_parameter_that_only_the_plan_knows_is_refused():
    call = call_of("my::op", x=f32(3))
    other = replace(call.outcome, recipe=PlannedRecipe("gone.recipe", (("gone.p", 1),)))
    with pytest.raises(ValueError, match="the recipe of this plan has a parameter gone"):
        points(replace(call, outcome=other), "gone.p=2")


def test_a_call_that_cannot_run_keeps_its_reason_at_every_point():
    call = call_of("my::op", Skipped("collective", "needs a group"))
    assert [p.outcome for p in points(call, "num_seqs=1,2")] == [call.outcome] * 2


def command(*words):
    return main(["sweep", *map(str, words), "--device", "cpu", "--no-isolation", "--time", "0.002"])


def test_the_command_sweeps_a_call_of_a_trace_or_plan_and_writes_the_report(tmp_path, capsys):
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "csv", "html")}
    flags = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    chosen = ["--op", "aten::mm", "--call", "1", "--set", "self.0=1,64", *flags]
    assert command(TINY_TRACE, *chosen) == 0
    assert "ok  self.0=64" in capsys.readouterr().out
    rows = orjson.loads(files["json"].read_bytes())["rows"]
    assert [r["point"]["settings"] for r in rows] == [{"self.0": "1"}, {"self.0": "64"}]
    assert rows[0]["bytes"] < rows[1]["bytes"]
    assert [str(r.point) for r in read_results(files["json"]).rows] == ["self.0=1", "self.0=64"]
    assert [line["point"] for line in csv.DictReader(files["csv"].read_text().splitlines())] == [
        "self.0=1", "self.0=64",
    ]  # fmt: skip
    assert '"settings": {"self.0": "64"}' in files["html"].read_text()
    plan = tmp_path / "p.json"
    words = ["plan", TINY_TRACE, "--op", "aten::mm", "-o", plan, "--no-isolation"]
    assert main([str(word) for word in words]) == 0
    assert command(plan, "--set", "self.0=3") == 0
    assert command(plan, "--set", "self.0=3", "--call", "99") == 2
    assert "--call 99: " in capsys.readouterr().err
    assert command(plan, "--set", "self.9=3") == 2
    assert "has no 'self.9' to set" in capsys.readouterr().err
    assert command(plan, "--set", "self.0=3", "--graph-launches", TINY_TRACE) == 2
    assert command(plan, "--set", "moe.s=1", "--recipe", "moe.s=2") == 2
    assert "moe.s is set by --set and by --recipe" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command(plan, "--set", "self.0")


def test_a_sweep_that_was_ended_goes_on_with_the_points_that_are_left(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    words = [
        TINY_TRACE,
        "--op",
        "aten::mm",
        "--call",
        "1",
        "--set",
        "self.0=1,2,3",
        "--jsonl",
        rows,
    ]
    assert command(*words) == 0
    header, first, *_ = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(header + first + b'{"cut')
    capsys.readouterr()

    assert command(*words, "--resume") == 0

    assert "1 rows are there already" in capsys.readouterr().out
    kept = rows.read_bytes().splitlines(keepends=True)
    assert kept[:2] == [header, first]
    points = [orjson.loads(line)["point"]["settings"]["self.0"] for line in kept[1:]]
    assert points == ["1", "2", "3"]


def test_too_little_memory_and_sizes_that_do_not_fit_are_rows_with_a_reason(tmp_path):
    out = tmp_path / "r.json"
    words = ["--op", "aten::mm", "--call", "1", "--set", "self.0=1,1m", "--json", out]
    assert command(TINY_TRACE, *words, "--memory-budget", "1MiB") == 0
    assert [r["reason"] for r in orjson.loads(out.read_bytes())["rows"]] == [
        None, "over_memory_budget",
    ]  # fmt: skip
    assert command(TINY_TRACE, *words[:4], "--set", "self.1=3", "--json", out) == 0
    (row,) = orjson.loads(out.read_bytes())["rows"]
    assert row["reason"] == "failed"
    assert "shapes cannot be multiplied" in row["detail"]
