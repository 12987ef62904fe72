"""Recipes for operators of engines, through resolving: events, schemas and a checker by hand."""

from dataclasses import replace

import pytest
import torch
from kineto_events import calls_of, op

from opreplay.inputs import Inputs, make_inputs
from opreplay.resolve.resolver import Resolver
from opreplay.trace.call import Skipped
from opreplay.trace.steps import parse_step

SCHEMAS = {
    "_rocm_C": "paged_attention(Tensor! out, Tensor exp_sums, Tensor max_logits, Tensor tmp_out, "
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
    "Tensor block_tables, Tensor seq_lens, Tensor? query_start_loc, int block_size, "
    "int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) "
    "-> ()",
    "_C_cache_ops": "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, "
    "Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, "
    "Tensor v_scale) -> ()",
}


@pytest.fixture(scope="module")
def libraries():
    """The operators' schemas, where their libraries are not installed."""
    made = []
    for namespace, schema in SCHEMAS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        name = schema.partition("(")[0]
        if not torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}"):
            library.define(schema)
            library.impl(name, lambda *arguments: None, "CompositeExplicitAutograd")
        made.append(library)
    yield
    for library in made:
        library._destroy()


def inputs_of(tmp_path, name, recorded, *, step=None):
    """Writes an event, reads it, resolves it and makes its inputs."""
    types, dims, values = zip(*recorded, strict=True)
    strides = [[] if not d else torch.empty(d, device="meta").stride() for d in dims]
    event = op(name, types=types, dims=dims, strides=strides, values=values)
    (call,) = calls_of(tmp_path, event).values()
    resolved = Resolver(device="cpu").resolve(call)
    assert not isinstance(resolved, Skipped), resolved
    resolved = replace(resolved, batch=parse_step(step or ""))
    made = make_inputs(resolved, device="cpu", seed=0, memory_budget=1 << 30)
    if isinstance(made, Skipped):
        return made
    assert isinstance(made, Inputs)
    names = [argument.name for argument in resolved.arguments]
    return dict(zip(names, made.arguments, strict=True)) | {"recipe": made.recipe}


def t(kind, *dims):
    return kind, list(dims), ""


def number(text):
    return "Scalar", [], text


NOTHING = ("", [], "")


def rocm_attention(sequences, tokens, *, starts=True):
    partitions = 2
    cache = t("c10::Half", 200, 2, 8, 16, 8)
    return [
        t("c10::Half", tokens, 8, 64), t("float", tokens, 8, partitions),
        t("float", tokens, 8, partitions), t("c10::Half", tokens, 8, partitions, 64),
        t("c10::Half", tokens, 8, 64), cache, t("c10::Half", 200, 2, 64, 16), number("2"),
        number("0.125"), t("int", sequences, 20), t("int", sequences),
        t("int", sequences + 1) if starts else NOTHING, number("16"), number("300"), NOTHING,
        NOTHING, t("float", 1), t("float", 1),
    ]  # fmt: skip


def assert_paged(inputs, *, blocks, block_size, longest):
    lengths, table = inputs["seq_lens"].tolist(), inputs["block_tables"].tolist()
    used = [b for row, n in zip(table, lengths, strict=True) for b in row[: -(-n // block_size)]]
    assert len(set(used)) == len(used)
    assert all(0 <= b < blocks for row in table for b in row)
    assert max(lengths) <= longest


@pytest.mark.parametrize("starts", [True, False])
def test_rocm_paged_attention_decodes_with_distinct_blocks(libraries, tmp_path, starts):
    inputs = inputs_of(tmp_path, "_rocm_C::paged_attention", rocm_attention(7, 7, starts=starts))
    assert_paged(inputs, blocks=200, block_size=16, longest=300)
    assert inputs["seq_lens"].min() >= 150
    assert inputs["seq_lens"].max() == 300
    if starts:
        assert inputs["query_start_loc"].tolist() == list(range(8))
    assert inputs["recipe"].startswith("decode of 7 sequences")


def test_rocm_paged_attention_tells_the_idle_sequences_of_a_mixed_step(libraries, tmp_path):
    inputs = inputs_of(
        tmp_path,
        "_rocm_C::paged_attention",
        rocm_attention(5, 63),
        step="execute_context_2(60)_generation_3(3)",
    )
    assert inputs["query_start_loc"].tolist() == [0, 1, 2, 3, 33, 63]
    assert "; 2 of 5 sequences idle;" in inputs["recipe"]
    assert_paged(inputs, blocks=200, block_size=16, longest=300)


def test_rocm_paged_attention_without_decode_would_time_nothing(libraries, tmp_path):
    skipped = inputs_of(tmp_path, "_rocm_C::paged_attention", rocm_attention(2, 60))
    assert skipped.reason == "recipe_failed"
    assert "the step has none of query length 1" in skipped.detail


def flash_write(tokens):
    cache = t("c10::BFloat16", 64, 16, 2, 8)
    new = t("c10::BFloat16", tokens, 2, 8)
    return [
        new, new, cache, cache, t("long int", tokens), NOTHING, t("float"), t("float"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "different_blocks"),
    [("execute_context_0(0)_generation_40(40)", 40), ("execute_context_1(40)_generation_0(0)", 3)],
)
def test_flash_cache_writes_hit_the_blocks_of_their_phase(
    libraries, tmp_path, step, different_blocks
):
    inputs = inputs_of(
        tmp_path, "_C_cache_ops::reshape_and_cache_flash", flash_write(40), step=step
    )
    slots = inputs["slot_mapping"]
    assert slots.unique().numel() == 40
    assert slots.min() >= 0
    assert slots.max() < 64 * 16
    assert (slots // 16).unique().numel() == different_blocks
