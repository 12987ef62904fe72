"""TraceLens' calls on our engine: the behaviours that its users' scripts rely on."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kineto_events import event, op, trace_of
from test_docs import PAGES, steps

import opreplay
from opreplay.calls import _kept_resolver
from opreplay.options import ReplayOptions
from opreplay.recipes import find_recipe
from opreplay.resolve.dtypes import _NAMES
from opreplay.trace.event_dicts import trace_of_events
from opreplay.tracelens import (
    CustomInit,
    EventReplayer,
    MoeRoutingInit,
    PagedAttentionInit,
    TensorCfg,
    benchmark_func,
    extract_batch_context,
    list_custom_inits,
    read_replay_ir,
    read_unique_args,
)
from opreplay.tracelens.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
TOKENS, TOP_K, EXPERTS, BLOCK = 37, 2, 8, 4
PAGED = (
    "paged_attention(Tensor! out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, "
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
    "Tensor block_tables, Tensor seq_lens, Tensor? query_start_loc, int block_size, "
    "int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) "
    "-> ()"
)
STAGE1 = (
    "ck_moe_stage1(Tensor hidden_states, Tensor w1, Tensor w2, Tensor sorted_token_ids, "
    "Tensor sorted_expert_ids, Tensor num_valid_ids, Tensor! out, int topk, "
    "str? kernelName=None, Tensor? w1_scale=None, Tensor? a1_scale=None, int block_m=32, "
    "Tensor? sorted_weights=None) -> ()"
)


@pytest.fixture(scope="module", autouse=True)
def engines():
    """The two operators' schemas, where their libraries are not installed, and one of ours."""
    made = []
    for namespace, form in (
        ("_rocm_C", PAGED),
        ("aiter", STAGE1),
        ("tl_test", "index_of(Tensor rows, *, Tensor table, int scale=1) -> Tensor"),
        ("tl_test", "swapped(Tensor table, Tensor rows) -> Tensor"),
        ("tl_test", "pair(Tensor a) -> (Tensor, Tensor)"),
    ):
        name = form.partition("(")[0]
        if torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}"):
            continue
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(form)
        kernels = {
            "index_of": lambda rows, *, table, scale=1: table[rows] * scale,
            "swapped": lambda table, rows: table[rows],
            "pair": lambda a: (a + 1, a + 2),
        }
        library.impl(name, kernels.get(name, lambda *a: None), "CompositeExplicitAutograd")
        made.append(library)
    _kept_resolver.cache_clear()
    yield
    for library in made:
        library._destroy()
    _kept_resolver.cache_clear()


@pytest.fixture
def register():
    """Registers initializers for the length of a test."""
    registered = []

    def add(ops, initialize, base=CustomInit):
        init = type("MadeInit", (base,), {"op_patterns": ops, "initialize": initialize})()
        EventReplayer.register_custom_init(init)
        registered.append(init)
        return init

    yield add
    for init in registered:
        EventReplayer.remove_custom_init(init)


def mm_event(m=4, k=8, n=16):
    return op(
        "aten::mm", types=["float"] * 2, dims=[[m, k], [k, n]], strides=[[k, 1], [n, 1]],
        values=["", ""],
    )  # fmt: skip


def recorded(name, *arguments):
    types, dims, values = zip(*arguments, strict=True)
    strides = [[] if not d else list(torch.empty(d, device="meta").stride()) for d in dims]
    return op(name, types=list(types), dims=list(dims), strides=strides, values=list(values))


def t(kind, *dims):
    return kind, list(dims), ""


def number(text):
    return "Scalar", [], str(text)


NOTHING = ("", [], "")


def paged_event(sequences=7, tokens=7):
    cache = t("c10::Half", 200, 2, 8, 16, 8)
    return recorded(
        "_rocm_C::paged_attention",
        t("c10::Half", tokens, 8, 64), t("float", tokens, 8, 2), t("float", tokens, 8, 2),
        t("c10::Half", tokens, 8, 2, 64), t("c10::Half", tokens, 8, 64), cache,
        t("c10::Half", 200, 2, 64, 16), number(2), number(0.125), t("int", sequences, 20),
        t("int", sequences), t("int", sequences + 1), number(16), number(300), NOTHING, NOTHING,
        t("float", 1), t("float", 1),
    )  # fmt: skip


def moe_event():
    length = TOKENS * TOP_K + EXPERTS * BLOCK - TOP_K
    return recorded(
        "aiter::ck_moe_stage1",
        t("float", TOKENS, 16), t("float", EXPERTS, 16, 16), t("float", EXPERTS, 16, 8),
        t("int", length), t("int", length // BLOCK), t("int", 2), t("float", TOKENS, TOP_K, 8),
        number(TOP_K), NOTHING, NOTHING, NOTHING, number(BLOCK), t("float", length),
    )  # fmt: skip


def named(replayer):
    names = [a["arg_name"] for a in replayer.event_replay_IR["list_pos_args"]]
    return SimpleNamespace(**dict(zip(names, replayer.args, strict=True)), **replayer.kwargs)


def noted(log, note):
    return lambda self, replayer, **kwargs: log.append(note)


# The eleven behaviours that the tests of TraceLens' pull request describe.


def test_a_lazy_replayer_has_arguments_once_it_has_replayed():
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True, auto_init=False)
    assert not hasattr(replayer, "args")
    replayer.replay()
    assert [tuple(a.shape) for a in replayer.args] == [(4, 8), (8, 16)]


def test_an_initializer_sees_the_arguments_of_a_lazy_replay(register):
    seen = []
    register(["aten::mm"], lambda self, replayer: seen.append((replayer.args, replayer.kwargs)))
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True)
    assert seen == []
    replayer.replay()
    ((args, kwargs),) = seen
    assert args is replayer.args
    assert len(args) == 2
    assert kwargs == {}


def test_r13_repro_info_is_equal_each_time():
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True)
    assert replayer.get_repro_info() == replayer.get_repro_info()


def test_r13_repro_info_leaves_the_ir_as_it_was():
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True)
    replayer.get_repro_info()["replay_ir"]["list_pos_args"][0]["value"]["shape"].append(3)
    assert replayer.event_replay_IR["list_pos_args"][0]["value"] == TensorCfg(
        [4, 8], "float", [8, 1], "normal"
    )


def test_a_replay_works_after_repro_info():
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True)
    replayer.get_repro_info()
    assert replayer.replay().shape == (4, 16)


def test_r2_one_initializer_runs_and_the_latest_registered_wins(register):
    log = []
    register(["aten::mm"], noted(log, "first"))
    register(["aten::mm"], noted(log, "latest"))
    EventReplayer(mm_event(), device="cpu").replay()
    assert log == ["latest"]


@pytest.mark.parametrize("lazy", [False, True])
def test_r12_replay_returns_the_operators_result(lazy):
    replayer = EventReplayer(mm_event(), device="cpu", lazy=lazy)
    result = replayer.replay()
    torch.testing.assert_close(result, torch.matmul(*replayer.args))


def test_r6_an_exact_name_is_served(register):
    log = []
    register(["aten::mm"], noted(log, 1))
    EventReplayer(mm_event(), device="cpu")
    assert log == [1]


def test_r6_r16_part_of_a_name_is_refused_when_it_is_registered(register):
    with pytest.raises(ValueError, match="'mm' is no exact operator name"):
        register(["mm"], noted([], 1))
    with pytest.raises(ValueError, match=r"MadeInit\.op_patterns names no operator"):
        register([], noted([], 1))


def test_no_initializer_runs_without_auto_init(register):
    log = []
    register(["aten::mm"], noted(log, 1))
    EventReplayer(mm_event(), device="cpu", auto_init=False).replay()
    assert log == []


# More of what its users' scripts rely on.


def test_r12_no_output_is_none_and_several_are_a_tuple():
    assert EventReplayer(moe_event(), device="cpu").replay() is None
    pair = EventReplayer(recorded("tl_test::pair", t("float", 3)), device="cpu")
    first, second = pair.replay()
    torch.testing.assert_close((first, second), (pair.args[0] + 1, pair.args[0] + 2))


def test_results_take_part_in_autograd_like_any_tensor():
    result = EventReplayer(mm_event(), device="cpu").replay()
    assert not result.is_inference()


def index_event(scale=3):
    return recorded("tl_test::index_of", t("long int", 5), t("float", 4), number(scale))


def test_arguments_by_keyword_are_apart_and_the_ir_names_both():
    replayer = EventReplayer(index_event(), device="cpu")
    assert len(replayer.args) == 1
    assert list(replayer.kwargs) == ["table", "scale"]
    ir = replayer.event_replay_IR
    assert [a["arg_name"] for a in ir["list_pos_args"]] == ["rows"]
    assert [(a["arg_name"], a["arg_type"]) for a in ir["list_kwargs"]] == [
        ("table", "Tensor"), ("scale", "int"),
    ]  # fmt: skip


def test_what_is_changed_in_place_or_replaced_is_what_runs_and_is_timed():
    replayer = EventReplayer(index_event(), device="cpu")
    replayer.args[0].fill_(2)
    replayer.kwargs["table"] = torch.tensor([0.0, 0.0, 5.0, 0.0])
    replayer.kwargs["scale"] = 10
    assert replayer.replay().tolist() == [50.0] * 5
    assert replayer.call.run()[0].tolist() == [50.0] * 5
    assert opreplay.time_call(replayer.call, opreplay.TimingOptions(time_s=0.01)).median > 0


def test_an_initializer_gets_the_event_the_arguments_and_what_they_are_called(register):
    seen = []

    def initialize(self, replayer, **kwargs):
        names = [a["arg_name"] for a in replayer.event_replay_IR["list_pos_args"]]
        rows = replayer.args[names.index("rows")]
        rows.copy_(torch.randint(0, replayer.kwargs["table"].shape[0], rows.shape))
        rows[0] = 3
        seen.append((replayer.event, kwargs, replayer.device))
        return "rows below 4"

    register(["tl_test::index_of"], initialize)
    mine = index_event() | {"my_field": 1}
    replayer = EventReplayer(mine, device="cpu", init_kwargs={"knob": 2})
    assert seen == [(mine, {"knob": 2}, "cpu")]
    assert replayer.replay()[0] == replayer.kwargs["table"][3] * 3


def test_integers_are_zero_without_an_initializer(caplog):
    with caplog.at_level(logging.WARNING):
        replayer = EventReplayer(moe_event(), device="cpu", auto_init=False)
    assert not named(replayer).sorted_token_ids.any()
    assert "no initializer ran: integers are zero" in caplog.text


def test_an_operator_that_is_registered_later_is_found():
    EventReplayer(mm_event(), device="cpu")
    wanted = recorded("tl_unnamed::same", t("float", 3))
    with pytest.raises(RuntimeError, match="operator_unresolved"):
        EventReplayer(wanted, device="cpu")
    library = torch.library.Library("tl_unnamed", "DEF")
    library.define("same(Tensor a) -> Tensor")
    library.impl("same", lambda a: a.clone(), "CPU")
    replayer = EventReplayer(wanted, device="cpu", lazy=True)
    (result,) = replayer.call.run()
    torch.testing.assert_close(result, replayer.args[0])
    library._destroy()


def test_verbose_shows_the_schema_and_what_was_chosen(caplog):
    with caplog.at_level(logging.WARNING):
        EventReplayer(paged_event(), device="cpu", verbose=True)
    assert "_rocm_C::paged_attention(Tensor" in caplog.text
    assert "decode of 7 sequences" in caplog.text


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (event("aten::no_such_operator", Input_type=[], Input_Dims=[]),
         "aten::no_such_operator: operator_unresolved: no library here registers"),
        (event("aten::mm"), "aten::mm: metadata_missing: .*record_shapes=True"),
    ],
    ids=["unknown", "no shapes"],
)  # fmt: skip
def test_an_event_that_cannot_run_says_why(broken, error):
    with pytest.raises(RuntimeError, match=error):
        EventReplayer(broken, device="cpu")


def test_what_is_no_event_is_refused():
    with pytest.raises(ValueError, match="expected a dictionary with 'name' and 'args'"):
        EventReplayer({"op": "aten::mm"}, device="cpu")


# Review remarks on the pull request.


def test_r1_an_initializer_runs_on_exactly_the_tensors_of_each_rebuild(register):
    runs = []

    def initialize(self, replayer):
        replayer.args[0].fill_(len(runs) + 1)
        runs.append(replayer.args[0])

    register(["aten::mm"], initialize)
    replayer = EventReplayer(mm_event(), device="cpu", lazy=True)
    for count in (1, 2, 3):
        result = replayer.replay()
        assert len(runs) == count
        assert runs[-1] is replayer.args[0]
        torch.testing.assert_close(result, torch.full((4, 8), float(count)) @ replayer.args[1])


@pytest.mark.parametrize(
    ("made", "tables"),
    [
        (paged_event, ("block_tables", "seq_lens", "query_start_loc")),
        (moe_event, ("sorted_token_ids", "sorted_expert_ids", "num_valid_ids")),
    ],
    ids=["paged attention", "MoE"],
)
def test_r1_lazy_replays_read_equal_tables_that_hold_something(made, tables):
    replayer = EventReplayer(made(), device="cpu", lazy=True)
    seen = []
    for _ in range(3):
        replayer.replay()
        seen.append([getattr(named(replayer), table) for table in tables])
    assert all(table.any() for table in seen[0])
    for others in seen[1:]:
        assert all(a is not b for a, b in zip(seen[0], others, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(seen[0], others, strict=True))


def test_r2_an_initializer_of_the_user_runs_alone_until_it_is_removed():
    log = []

    def initialize(self, replayer, **kwargs):
        log.append(named(replayer).seq_lens.tolist())

    ops = {"op_patterns": ["_rocm_C::paged_attention"], "initialize": initialize}
    mine = type("Mine", (CustomInit,), ops)()
    EventReplayer.register_custom_init(mine)
    try:
        alone = EventReplayer(paged_event(), device="cpu")
    finally:
        EventReplayer.remove_custom_init(mine)
    assert log == [[0] * 7]  # no recipe ran before it
    assert not named(alone).block_tables.any()
    assert named(EventReplayer(paged_event(), device="cpu")).block_tables.any()
    with pytest.raises(KeyError, match="is not registered"):
        EventReplayer.remove_custom_init(mine)


def test_r3_a_failed_import_is_tried_again_after_a_registration(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    wanted = recorded("tl_late::double", t("float", 3))
    EventReplayer.register_namespace("tl_late", ["tl_late_operators"])
    with pytest.raises(RuntimeError, match="No module named 'tl_late_operators'"):
        EventReplayer(wanted, device="cpu")
    (tmp_path / "tl_late_operators.py").write_text("def double(a):\n    return a + a\n")
    EventReplayer.register_namespace("tl_late", ["tl_late_operators"])
    replayer = EventReplayer(wanted, device="cpu")
    torch.testing.assert_close(replayer.replay(), replayer.args[0] * 2)
    assert opreplay.time_callable(replayer.call, opreplay.TimingOptions(time_s=0.01)).median > 0


def test_r4_a_schema_that_does_not_fit_is_a_warning_with_each_reason(caplog):
    wrong = recorded("tl_test::pair", t("float", 3), t("float", 3))
    replayer = EventReplayer(wrong, device="cpu")
    with caplog.at_level(logging.WARNING):
        EventReplayer(wrong, device="cpu")
    assert "tl_test::pair is called as a Python function" in caplog.text
    assert "1 schemas were searched" in caplog.text
    assert "it takes 1 arguments, 2 were recorded" in caplog.text
    assert replayer.matched_schema is None


def test_r4_the_row_has_no_schema_and_strict_refuses_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tl_plain_operators.py").write_text("def double(a):\n    return a + a\n")
    EventReplayer.register_namespace("tl_plain", ["tl_plain_operators"])
    trace = trace_of_events([recorded("tl_plain::double", t("float", 3))])
    options = ReplayOptions(device="cpu", isolation=False)
    (row,) = opreplay.replay(trace, options=options).rows
    assert (row.status, row.schema) == ("ok", None)
    (row,) = opreplay.replay(
        trace, options=ReplayOptions(device="cpu", isolation=False, strict=True)
    ).rows
    assert row.status == "failed"
    assert "called as a Python function" in row.detail


@pytest.mark.parametrize("name", sorted(name for names in _NAMES.values() for name in names[:1]))
@pytest.mark.parametrize("path", ["schema", "no schema"])
def test_r5_every_element_type_is_made_on_both_paths(tmp_path, monkeypatch, name, path):
    wanted = recorded("tl_test::pair", t(name, 3))
    if path == "no schema":
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "tl_types_operators.py").write_text("def same(a):\n    return a\n")
        EventReplayer.register_namespace("tl_types", ["tl_types_operators"])
        wanted = recorded("tl_types::same", t(name, 3))
    (made,) = EventReplayer(wanted, device="cpu", auto_init=False).args
    dtypes = {n: d for d, names in _NAMES.items() for n in names}
    assert str(made.dtype) == f"torch.{dtypes[name]}"
    if not (made.dtype.is_floating_point or made.dtype.is_complex or made.is_quantized):
        assert made.tolist() == [0, 0, 0]


def test_r6_the_annotation_join_and_the_initializer_know_the_same_exact_names():
    def attention(name):
        return event(name, ts=10, Input_Dims=[[1, 1]])

    exact, like = attention("_rocm_C::paged_attention"), attention("x::my_paged_attention_v9")
    assert extract_batch_context(analyzer(step("execute_context_2(18)_generation_5(5)"), exact,
                                          like)) == 1  # fmt: skip
    assert exact["batch_context"]["n_prefill"] == 2
    assert "batch_context" not in like
    assert find_recipe("x::my_paged_attention_v9") is None
    assert all(find_recipe(name) is not None for name in PagedAttentionInit.op_patterns)
    assert all(find_recipe(name) is not None for name in MoeRoutingInit.op_patterns)


def test_r7_arguments_are_found_by_name_and_a_missing_name_fails_the_replay(register):
    seen = []

    def initialize(self, replayer):
        arguments = named(replayer)
        arguments.rows.fill_(arguments.table.shape[0] - 1)
        seen.append(replayer.args)
        arguments.missing.fill_(1)

    register(["tl_test::swapped"], initialize)
    with pytest.raises(RuntimeError, match=r"recipe_failed: .*initialize.*'missing'"):
        EventReplayer(recorded("tl_test::swapped", t("float", 4), t("long int", 2)), device="cpu")
    ((table, rows),) = seen
    assert rows.tolist() == [3, 3]
    assert table.dtype is torch.float32


@pytest.mark.parametrize("wrong", ["seq_lens", "key_cache"])
def test_r7_a_renamed_argument_fails_with_the_names_that_are_there(register, wrong):
    library = torch.library.Library("_rocm_C", "FRAGMENT")
    schema = PAGED.replace(f" {wrong},", " other_name,").replace("paged_attention", f"with_{wrong}")
    library.define(schema)
    library.impl(f"with_{wrong}", lambda *a: None, "CompositeExplicitAutograd")
    _kept_resolver.cache_clear()

    def initialize(self, replayer, **kwargs):
        replayer.recipe_call.tensor(wrong).fill()

    register([f"_rocm_C::with_{wrong}"], initialize)
    renamed = paged_event() | {"name": f"_rocm_C::with_{wrong}"}
    with pytest.raises(RuntimeError, match=f"no argument '{wrong}'; it has .*other_name"):
        EventReplayer(renamed, device="cpu")
    library._destroy()
    _kept_resolver.cache_clear()


def test_r8_r9_all_tests_are_collected_without_a_gpu():
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
    hidden.pop("OPREPLAY_REQUIRE_GPU", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT, env=hidden, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert files == {Path(name).name for name in re.findall(r"^(\S+\.py)::", done.stdout, re.M)}


def test_r11_the_page_for_tracelens_is_linked_and_its_examples_run():
    page = ROOT / "docs" / "from-tracelens.md"
    assert page in PAGES
    assert len(list(steps(page))) >= 5
    assert "docs/from-tracelens.md" in (ROOT / "README.md").read_text()


def test_r17_parameters_reach_the_recipe_by_tracelens_names_and_unknown_ones_are_errors():
    def busiest(**kwargs):
        replayer = EventReplayer(moe_event(), device="cpu", init_kwargs=kwargs)
        arguments = named(replayer)
        blocks = int(arguments.num_valid_ids[0]) // BLOCK
        return int(arguments.sorted_expert_ids[:blocks].bincount().max())

    assert busiest(moe_distribution="zipf", moe_zipf_s=4.0) > busiest(moe_distribution="uniform")
    with pytest.raises(ValueError, match=r"no recipe has a parameter 'moe_typo'.*moe\.s"):
        busiest(moe_typo=1)


def test_r24_initializers_are_listed_with_those_that_win_first(register):
    register(["aten::mm"], noted([], 1))
    assert list_custom_inits() == [
        ("MadeInit", ["aten::mm"]),
        ("PagedAttentionInit", PagedAttentionInit.op_patterns),
        ("MoeRoutingInit", ["aiter::ck_moe_stage1", "aiter::ck_moe_stage2"]),
    ]


def test_r40_an_initializer_that_raises_fails_the_replay(register):
    def initialize(self, replayer):
        raise ZeroDivisionError("by hand")

    register(["aten::mm"], initialize)
    with pytest.raises(RuntimeError, match=r"recipe_failed: .*ZeroDivisionError: by hand"):
        EventReplayer(mm_event(), device="cpu")


def test_an_initializer_may_go_on_from_ours(register):
    def initialize(self, replayer, **kwargs):
        chosen = PagedAttentionInit.initialize(self, replayer, **kwargs)
        replayer.args[10].fill_(16)
        return chosen

    register(["_rocm_C::paged_attention"], initialize, base=PagedAttentionInit)
    arguments = named(EventReplayer(paged_event(), device="cpu"))
    assert arguments.seq_lens.tolist() == [16] * 7
    assert arguments.block_tables.any()
    assert arguments.query_start_loc.tolist() == list(range(8))


def test_ours_cannot_go_first_where_there_is_no_recipe(register):
    register(["aten::mm"], MoeRoutingInit.initialize, base=MoeRoutingInit)
    with pytest.raises(RuntimeError, match=r"recipe_failed: .*opreplay has no recipe for aten::mm"):
        EventReplayer(mm_event(), device="cpu")


# R39: what is registered also serves a run of a trace.


def test_r39_a_run_of_a_trace_uses_the_same_initializer_on_its_tensors(register):
    seen = []

    def initialize(self, replayer, **kwargs):
        replayer.args[0] = torch.full((5,), 1)
        ir = replayer.event_replay_IR["list_kwargs"]
        seen.append((replayer.event["name"], replayer.device, [a["arg_type"] for a in ir]))
        return "ones"

    register(["tl_test::index_of"], initialize)
    trace = trace_of_events([index_event()])
    (row,) = opreplay.replay(trace, options=ReplayOptions(device="cpu", isolation=False)).rows
    assert (row.status, row.recipe) == ("ok", "ones")
    assert seen == [("tl_test::index_of", "cpu", ["Tensor", "int"])]


def test_r39_a_run_of_a_trace_refuses_what_it_cannot_put_back(register):
    def initialize(self, replayer, **kwargs):
        replayer.kwargs["scale"] = 7

    register(["tl_test::index_of"], initialize)
    trace = trace_of_events([index_event()])
    (row,) = opreplay.replay(trace, options=ReplayOptions(device="cpu", isolation=False)).rows
    assert row.reason == "recipe_failed"
    assert "put 7 in the place of argument 'scale'" in row.detail


def test_an_initializer_goes_over_values_that_the_trace_kept(register, tmp_path):
    table, indices = torch.rand(9, 2), torch.tensor([3, 8])
    path = tmp_path / "kept.json"
    with opreplay.record(path, keep_values=8):
        torch.nn.functional.embedding(indices, table)
    (recorded_event,) = [
        e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "aten::embedding"
    ]
    assert EventReplayer(recorded_event, device="cpu").args[1].tolist() == [3, 8]
    register(["aten::embedding"], lambda self, replayer: replayer.args[1].fill_(7))
    replayer = EventReplayer(recorded_event, device="cpu")
    assert replayer.args[1].tolist() == [7, 7]
    torch.testing.assert_close(replayer.replay(), replayer.args[0][[7, 7]])


# Annotations.


def analyzer(*events):
    return SimpleNamespace(tree=SimpleNamespace(events=list(events)))


def step(name, **rest):
    return event(name, cat="user_annotation", ts=0, dur=100, **rest)


def attention_at(ts, **rest):
    return event("_rocm_C::paged_attention", ts=ts, Input_Dims=[[1, 1]], **rest)


def test_r18_the_batch_has_four_numbers_of_the_enclosing_step():
    inside, after = attention_at(10), attention_at(150)
    other_rank, shapeless = attention_at(10, pid=2), event("_rocm_C::paged_attention", ts=10)
    annotation = step("execute_context_2(18)_generation_5(5)")
    assert extract_batch_context(analyzer(inside, after, other_rank, shapeless, annotation)) == 1
    assert inside["batch_context"] == {
        "n_prefill": 2, "prefill_tokens": 18, "n_decode": 5, "decode_tokens": 5,
    }  # fmt: skip
    assert all("batch_context" not in event for event in (after, other_rank, shapeless))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("execute_7_context_1(sq5sk9sqsq25sqsk45)_generation_2(sq2sk80sqsq2sqsk80)", [1, 5, 2, 2]),
        ("step[DECODE bs=16]", [0, 0, 16, 16]),
        ("prefill[bs=2 tok=30 ctx=[10, 20]]", [2, 30, 0, 0]),
        ("execute_new_2_cached_3", [2, None, 3, 3]),
    ],
)
def test_r18_every_engines_form_is_read(name, numbers):
    op = attention_at(10)
    extract_batch_context(analyzer(step(name), op))
    assert list(op["batch_context"].values()) == numbers


def test_a_step_inside_a_step_is_part_of_it():
    inner = event("step[DECODE bs=1]", cat="user_annotation", ts=5, dur=50)
    op = attention_at(10)
    extract_batch_context(analyzer(inner, step("step[DECODE bs=16]"), op))
    assert op["batch_context"]["n_decode"] == 16


def test_r18_query_starts_are_the_running_sum_of_the_batch():
    mixed = paged_event(5, 63)
    mixed["batch_context"] = {
        "n_prefill": 2, "prefill_tokens": 60, "n_decode": 3, "decode_tokens": 3,
    }  # fmt: skip
    starts = named(EventReplayer(mixed, device="cpu")).query_start_loc
    assert starts.tolist() == [0, 1, 2, 3, 33, 63]
    with pytest.raises(
        ValueError, match=r"batch_context is \{'n_prefill': 1\}, expected n_prefill"
    ):
        EventReplayer(mixed | {"batch_context": {"n_prefill": 1}}, device="cpu")


def test_a_batch_reaches_calls_that_are_prepared_one_by_one(tmp_path):
    trace = trace_of(tmp_path, step("step[DECODE bs=16]"), mm_event() | {"ts": 10})
    (call,) = trace.calls("aten::mm")
    assert opreplay.resolve(call).batch.generation.sequences == 16


# Files.


def test_repro_info_is_written_and_read_as_json(tmp_path):
    events = [
        mm_event(),
        index_event(),
        recorded("aten::sum", t("c10::BFloat16", 2, 3), number(6)),
        recorded("aten::full", ("ScalarList", [], "[2, 3]"), number("inf"), number(6), number(0),
                 NOTHING, number("False")),
        op("aten::cat", types=["TensorList", "Scalar"], dims=[[[2, 3], [4, 3]], []],
           strides=[[[3, 1], [3, 1]], []], values=["", "0"]),
        recorded("aten::mul", t("c10::complex<float>", 2), number("2+1j")),
    ]  # fmt: skip
    infos = [EventReplayer(e, device="cpu", lazy=True).get_repro_info() for e in events]
    path = tmp_path / "event_replay_ir.json"
    path.write_text(json.dumps(infos))
    read = read_replay_ir(path)
    again = [EventReplayer(e, device="cpu") for e in read]
    assert [r.get_repro_info() for r in again] == infos
    assert again[2].replay().dtype is torch.float32
    assert again[3].replay().tolist() == [[float("inf")] * 3] * 2
    assert again[4].replay().shape == (6, 3)


def test_the_ir_of_tracelens_itself_is_read(tmp_path):
    """An entry in the form that its batched replay documents."""
    tensor = {"shape": [20, 4, 6, 6], "dtype": "c10::BFloat16", "strides": [144, 36, 6, 1]}
    weight = {"shape": [8, 4, 3, 3], "dtype": "c10::BFloat16", "strides": [36, 9, 3, 1]}
    values = [
        ("input", "Tensor", tensor), ("weight", "Tensor", weight | {"init": "normal"}),
        ("bias", "Tensor?", None), ("stride", "SymInt[]", [1, 1]), ("padding", "SymInt[]", [1, 1]),
        ("dilation", "SymInt[]", [1, 1]), ("transposed", "bool", False),
        ("output_padding", "SymInt[]", [0, 0]), ("groups", "SymInt", 1),
    ]  # fmt: skip
    ir = [{"arg_name": n, "arg_type": k, "value": v} for n, k, v in values]
    entry = {"op_name": "aten::convolution", "replay_ir": {"list_pos_args": ir, "list_kwargs": []}}
    path = tmp_path / "ir.json"
    path.write_text(json.dumps([entry | {"count": 7}]))
    (read,) = read_replay_ir(path)
    assert read["operation_count"] == 7
    assert EventReplayer(read, device="cpu").replay().shape == (20, 8, 6, 6)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not JSON"),
        ('{"op_name": 1}', "expected a list, got {'op_name': 1}"),
        ('[{"op_name": "aten::mm"}]', "entry 0: KeyError: 'replay_ir'"),
        ('[{"op_name": "aten::mm", "replay_ir": {"list_pos_args": '
         '[{"arg_type": "Tensor", "value": {"shape": [1]}}]}}]', "entry 0: KeyError: 'dtype'"),
    ],
    ids=["cut off", "no list", "no ir", "no dtype"],
)  # fmt: skip
def test_a_file_that_is_no_replay_ir_says_where(tmp_path, text, error):
    path = tmp_path / "ir.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        read_replay_ir(path)


SHEET = (
    "name,op category,Input Dims,Input type,Input Strides,Concrete Inputs,operation_count,ex_UID,"
    "kernel_details_summary\n"
    """aten::mm,GEMM,"((4, 8), (8, 16))","('float', 'float')","((8, 1), (1, 8))","('', '')","""
    "800,183611,{long}\n"
    """aten::addmm,GEMM,"((5,), (3, 2), (2, 5), (), ())","('float', 'float', 'float', 'Scalar', """
    """'Scalar')","((1,), (2, 1), (5, 1), (), ())","('', '', '', '1', '1')",2.0,,\n"""
)


def test_the_unique_args_sheet_is_read_as_events(tmp_path):
    path = tmp_path / "ops_unique_args.csv"
    path.write_text(SHEET.replace("{long}", "k" * 200_000))
    first, second = read_unique_args(path)
    assert first == {
        "name": "aten::mm",
        "cat": "cpu_op",
        "args": {
            "Input Dims": [[4, 8], [8, 16]],
            "Input type": ["float", "float"],
            "Input Strides": [[8, 1], [1, 8]],
            "Concrete Inputs": ["", ""],
        },
        "operation_count": 800,
        "UID": 183611,
    }
    assert second["operation_count"] == 2
    replayer = EventReplayer(first, device="cpu")
    assert replayer.args[1].stride() == (1, 8)
    assert EventReplayer(second, device="cpu").replay().shape == (3, 5)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("op,Input Dims\n", "line 1: the table has no column 'name', 'Input type'"),
        ("name,Input Dims,Input type\naten::mm,((,(),\n", "line 2: column 'Input Dims' holds"),
        ("name,Input Dims,Input type,Count\naten::mm,(),(),many\n", "column 'Count' holds 'many'"),
    ],
    ids=["no columns", "no literal", "no number"],
)
def test_a_sheet_that_cannot_be_read_says_where(tmp_path, text, error):
    path = tmp_path / "sheet.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(error)):
        read_unique_args(path)


# Batched replay with TraceLens' flags.


@pytest.fixture
def ir_file(tmp_path):
    events = [mm_event(n=n) for n in (1, 2, 3)]
    events += [recorded("aten::add", t("float", 3), t("float", 3), number(1))]
    events += [recorded("aten::add_", t("float", 3), t("float", 3), number(1))]
    infos = [EventReplayer(e, device="cpu", lazy=True).get_repro_info() for e in events]
    path = tmp_path / "event_replay_ir.json"
    path.write_text(json.dumps([infos[0] | {"count": 41}, *infos[1:]]))
    return str(path)


def rows_of(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[:2] for line in lines if re.match(r"\w+::", line)]


def test_r14_every_entry_is_replayed_with_its_count(ir_file, capsys):
    assert main([ir_file, "--device", "cpu"]) == 0
    assert rows_of(capsys) == [
        ["aten::mm", "41"], ["aten::mm", "1"], ["aten::mm", "1"], ["aten::add", "1"],
        ["aten::add_", "1"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "ops"),
    [
        (["--op-filter", "aten::add"], ["aten::add", "aten::add_"]),
        (["--op-filter", "^aten::add$"], ["aten::add"]),
        (["--op-filter", "mul|add", "--op-limit", "1"], ["aten::add"]),
    ],
    ids=["part", "exact", "regex and limit"],
)
def test_r14_filter_and_limit_have_effect(ir_file, capsys, flags, ops):
    assert main([ir_file, "--device", "cpu", *flags]) == 0
    assert [op for op, _ in rows_of(capsys)] == ops


def test_r14_a_row_that_is_not_ok_is_the_exit_status_and_may_end_the_run(tmp_path, capsys):
    # The sizes of the products do not fit.
    events = [recorded("aten::mm", t("float", 2, 3), t("float", n, 5)) for n in (7, 8)]
    infos = [EventReplayer(e, device="cpu", lazy=True).get_repro_info() for e in events]
    path = tmp_path / "ir.json"
    path.write_text(json.dumps(infos))
    assert main([str(path), "--device", "cpu"]) == 1
    assert len(rows_of(capsys)) == 2
    assert main([str(path), "--device", "cpu", "--stop-on-error", "-v"]) == 1
    assert len(rows_of(capsys)) == 1


def test_r39_batched_replay_imports_initializers_into_its_worker(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_inits.py").write_text(
        "from opreplay.tracelens import CustomInit, register_custom_init\n"
        "class Mine(CustomInit):\n"
        "    op_patterns = ['aten::mm']\n"
        "    def initialize(self, replayer, **kwargs):\n"
        "        raise RuntimeError('mine ran')\n"
        "register_custom_init(Mine())\n"
    )
    sheet = tmp_path / "ops_unique_args.csv"
    sheet.write_text(SHEET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main([str(sheet), "--device", "cpu", "--import", "my_inits"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"aten::mm +800 .*recipe_failed: my_inits\.Mine\.initialize.*mine ran", said)
    assert re.search(r"aten::addmm +2 .*ok", said)


@pytest.mark.parametrize("flags", [["missing.json"], ["missing.csv"]])
def test_a_file_that_is_not_there_is_bad_use(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_the_cpu_as_in_tracelens(ir_file, capsys):
    assert main([ir_file, "--device", "cuda", "--op-limit", "1"]) == 0
    assert "There is no cuda here: running on the CPU." in capsys.readouterr().out


# Timing.


def test_benchmark_func_calls_as_often_as_it_is_told():
    calls = []
    microseconds = benchmark_func(lambda: calls.append(0), "cpu", warmup=3, avg_steps=10)
    assert len(calls) == 13
    assert 0 < microseconds < 1e5
    with pytest.raises(ValueError, match="warmup and steps are counts"):
        benchmark_func(lambda: None, "cpu", avg_steps=0)


def test_benchmark_func_gives_the_mean_in_microseconds():
    mean = benchmark_func(lambda: time.sleep(0.002), "cpu", warmup=0, avg_steps=5)
    assert 2_000 <= mean < 200_000
