"""Recipes for vLLM's CPU operators: a stand-in for each producer shows what it was given."""

import gc
import itertools
from dataclasses import replace

import pytest
import torch
from made_calls import f32, foreign_call, i32, i64, made, make, tensor

from opreplay.recipes import recipe, remove_recipe
from opreplay.trace.steps import Phase, Step, parse_step

I8 = torch.int8
BF16 = torch.bfloat16


@pytest.fixture
def producers():
    """Operators that make handles and metadata; the list shows each of their calls."""
    if torch._C._jit_get_schemas_for_operator("_C::get_scheduler_metadata"):
        pytest.skip("vLLM's own operators are loaded")
    seen = []
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("create_onednn_mm_handler(Tensor b, int primitive_cache_size) -> int")
    library.define("release_dnnl_matmul_handler(int handler) -> ()")
    library.define(
        "get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, int head_dim, "
        "Tensor seq_lens, ScalarType dtype, Tensor query_start_loc, bool casual, int window_size, "
        "str isa_hint, bool enable_kv_split, Tensor? dynamic_causal, str kv_cache_dtype='auto') "
        "-> Tensor"
    )

    def create(weight, primitives):
        seen.append(("create", weight.clone(), primitives))
        return 4711

    def metadata(*arguments):
        seen.append(("metadata", *arguments))
        return torch.full((96,), 7, dtype=I8)

    library.impl("create_onednn_mm_handler", create, "CompositeExplicitAutograd")
    library.impl(
        "release_dnnl_matmul_handler",
        lambda handle: seen.append(("release", handle)),
        "CompositeExplicitAutograd",
    )
    library.impl("get_scheduler_metadata", metadata, "CompositeExplicitAutograd")
    yield seen
    library._destroy()


def attention(tokens, sequences, *, blocks=64, width=4, step=None):
    cache = tensor(BF16, blocks, 2, 32, 64)
    batch = None if step is None else parse_step(step)
    return replace(foreign_call(
        "_C::cpu_attention_with_kv_cache",
        query=tensor(BF16, tokens, 4, 64), key_cache=cache, value_cache=cache,
        output=tensor(BF16, tokens, 4, 64), query_start_loc=i32(sequences + 1),
        seq_lens=i32(sequences), scale=0.125, causal=True, alibi_slopes=None,
        sliding_window_size=-1, block_table=i32(sequences, width), softcap=0.0,
        scheduler_metadata=tensor(I8, 4448), s_aux=None, dynamic_causal=None,
        k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
    ), batch=batch)  # fmt: skip


def assert_blocks_are_valid(table, seq_lens, *, block_size, blocks):
    used = [
        block
        for row, length in zip(table.tolist(), seq_lens.tolist(), strict=True)
        for block in row[: -(-length // block_size)]
    ]
    assert len(set(used)) == len(used)
    assert table.min() >= 0
    assert table.max() < blocks


def test_decode_attention_has_one_query_a_sequence_and_lengths_within_its_table(producers):
    inputs = made(attention(5, 5))
    assert inputs.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.seq_lens.min() >= 64
    assert inputs.seq_lens.max() == 128
    assert_blocks_are_valid(inputs.block_table, inputs.seq_lens, block_size=32, blocks=64)
    assert "decode of 5 sequences, 5 queries" in inputs._inputs.recipe
    assert "64 to 128 are drawn" in inputs._inputs.assumptions[0]


def test_prefill_attention_runs_whole_prompts_that_add_up_to_the_queries(producers):
    inputs = made(attention(90, 4))
    assert inputs.query_start_loc.tolist() == [0, 23, 46, 68, 90]
    assert inputs.seq_lens.tolist() == [23, 23, 22, 22]
    assert_blocks_are_valid(inputs.block_table, inputs.seq_lens, block_size=32, blocks=64)


def test_a_small_pool_bounds_the_lengths(producers):
    inputs = made(attention(4, 4, blocks=8))
    assert inputs.seq_lens.max() == 64
    assert_blocks_are_valid(inputs.block_table, inputs.seq_lens, block_size=32, blocks=8)


def test_metadata_is_made_for_the_very_lengths_and_takes_the_recorded_ones_place(producers):
    inputs = made(attention(5, 5))
    ((_, *given),) = producers
    assert given[:4] == [5, 4, 2, 64]
    assert given[4].tolist() == inputs.seq_lens.tolist()
    assert given[6].tolist() == inputs.query_start_loc.tolist()
    assert given[7:9] == [True, -1]
    assert inputs.scheduler_metadata.tolist() == [7] * 96
    assert "made 96 bytes here, 4448 were recorded" in inputs._inputs.assumptions[-1]
    assert "scheduler_metadata from get_scheduler_metadata" in inputs._inputs.recipe


def test_a_mixed_step_has_the_annotations_totals_and_decodes_first(producers):
    step = "execute_42_context_2(sq40sk50sqsq800sqsk1000)_generation_2(sq2sk150sqsq2sqsk150)"
    inputs = made(attention(42, 5, step=step))
    assert inputs.query_start_loc.tolist() == [0, 1, 2, 22, 42, 42]
    assert inputs.seq_lens[:2].sum() == 150
    assert inputs.seq_lens[2:].tolist() == [30, 20, 0]
    assert inputs._inputs.recipe.startswith("mixed step of 5 sequences, 42 queries")
    assert not any("key lengths" in sentence for sentence in inputs._inputs.assumptions)


EVERY_FORM = [
    # annotation, tokens, new tokens of generation and prompts, all tokens of both (None: not told)
    ("execute_context_2(60)_generation_3(3)", 63, [3, 60], [None, 60]),
    ("execute_new_2_cached_3", 63, [3, 60], [None, 60]),
    ("execute_new_0_cached_5", 5, [5, 0], [None, 0]),
    ("execute_63_context_2(sq60sk75sqsq1808sqsk2288)_generation_3(sq3sk99sqsq3sqsk99)", 63,
     [3, 60], [99, 75]),
    ("step[EXTEND bs=4 toks=60]", 60, [0, 60], [0, 60]),
    ("step[EXTEND bs=2 toks=60 c_sqsq=1808 c_sqsk=2288 c_sk=75]", 60, [0, 60], [0, 75]),
    ("step[DECODE bs=5]", 5, [5, 0], [None, 0]),
    ("step[DECODE bs=5 g_sqsq=5 g_sqsk=371 g_sk=371]", 8, [5, 0], [371, 0]),
    ("step[MIXED bs=5 c=2 g=3 c_sq=60 c_sk=75 c_sqsq=1808 c_sqsk=2288 g_sq=3 g_sk=99]", 63,
     [3, 60], [99, 75]),
    ("step[mixed bs=5 ext=60 dec=3]", 63, [3, 60], [None, 60]),
    ("prefill[bs=2 tok=60 ctx=[28, 47]]", 60, [0, 60], [0, 75]),
    ("prefill[bs=2 tok=60 ctx=[28, 32]]", 60, [0, 60], [0, 60]),
    ("prefill[bs=2 tok=60 sqsq=1808 sqsk=2288 sk=75]", 60, [0, 60], [0, 75]),
    ("decode[bs=5/8 tok=10 d=5 spec=1]", 16, [10, 0], [None, 0]),
    ("decode[bs=5 tok=66 d=3 spec=1 p=2]", 66, [6, 60], [None, 60]),
    ("eager_decode[bs=5 tok=5 ctx=[9, 11, 120, 3, 50]]", 5, [5, 0], [193, 0]),
    ("capture_5_FULL", 5, [5, 0], [None, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tokens", "queries", "keys"), EVERY_FORM)
def test_r18_starts_and_lengths_have_the_totals_of_every_form(
    producers, name, tokens, queries, keys
):
    inputs = made(attention(tokens, 5, blocks=200, width=32, step=name))
    step, starts = parse_step(name), inputs.query_start_loc
    generating = step.generation.sequences
    assert starts[0] == 0
    assert starts[-1] == sum(queries)
    assert [starts[generating], starts[-1] - starts[generating]] == queries
    told = [inputs.seq_lens[:generating].sum(), inputs.seq_lens[generating:].sum()]
    assert all(exact is None or exact == total for exact, total in zip(keys, told, strict=True))
    lengths = starts.diff()
    assert (lengths <= inputs.seq_lens).all()
    if step.context.squares is not None:
        prompts = lengths[generating:]
        assert (prompts**2).sum() == step.context.squares
        assert (prompts * inputs.seq_lens[generating:]).sum() == step.context.products
    assert_blocks_are_valid(inputs.block_table, inputs.seq_lens, block_size=32, blocks=200)


def test_r18_positions_end_where_the_annotations_lengths_do():
    call = foreign_call("_C::compute_slot_mapping_kernel_impl", query_start_loc=i32(6),
                        positions=i64(63), block_table=i32(8, 4), slot_mapping=i64(4096),
                        block_size=128)  # fmt: skip
    name = "execute_63_context_2(sq60sk75sqsq1808sqsk2288)_generation_3(sq3sk99sqsq3sqsk99)"
    inputs = made(replace(call, batch=parse_step(name)))
    starts = inputs.query_start_loc.tolist()
    assert starts[-1] == 63
    assert sum(int(inputs.positions[end - 1]) + 1 for end in starts[1:]) == 75 + 99


def test_keys_that_go_on_are_alike_and_that_is_said(producers):
    step = Step(Phase(), Phase(5, 5, 233, carried=True))
    inputs = made(replace(attention(5, 5), batch=step))
    assert sorted(inputs.seq_lens.tolist()) == [46, 46, 47, 47, 47]
    assert any("go on from the prompts" in told for told in inputs._inputs.assumptions)


def test_what_a_form_leaves_open_is_an_assumption(producers):
    inputs = made(attention(63, 5, step="execute_new_2_cached_3"))
    assert any("are taken to generate" in told for told in inputs._inputs.assumptions)


def test_sums_of_squares_that_no_prompts_have_are_an_assumption(producers):
    name = "execute_60_context_2(sq60sk60sqsq1801sqsk1801)_generation_0(sq0sk0sqsq0sqsk0)"
    inputs = made(attention(60, 5, step=name))
    assert inputs.query_start_loc.tolist() == [0, 30, 60, 60, 60, 60]
    assert any("sums of squares were found" in told for told in inputs._inputs.assumptions)


def test_an_annotation_of_another_batch_is_not_used_and_that_is_said(producers):
    inputs = made(attention(4, 4, step="execute_context_0(0)_generation_9(9)"))
    assert inputs.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert "does not fit 4 sequences of 4 queries" in inputs._inputs.assumptions[0]


def test_prompts_longer_than_the_table_fail_the_recipe(producers):
    skipped = make(attention(1000, 4))
    assert skipped.reason == "recipe_failed"
    assert "1000 queries of 4 sequences of at most 128 tokens" in skipped.detail


def onednn():
    return foreign_call(
        "_C::onednn_mm", c=tensor(BF16, 6, 48), a=tensor(BF16, 6, 32), bias=None,
        handler_tensor=i64(),
    )  # fmt: skip


def test_a_onednn_handle_belongs_to_a_weight_of_the_products_sizes(producers):
    inputs = made(onednn())
    ((_, weight, primitives),) = producers
    assert inputs.handler_tensor.item() == 4711
    assert inputs.handler_tensor.dtype is torch.int64
    assert (tuple(weight.shape), weight.dtype, primitives) == ((32, 48), BF16, 32)
    assert weight.unique().numel() > 100
    assert inputs._inputs.recipe == "handle of a 32 x 48 weight from create_onednn_mm_handler"
    (sentence,) = inputs._inputs.assumptions
    assert "cold times find it in cache, and bytes do not count it" in sentence


def test_a_onednn_handle_lives_as_long_as_the_inputs(producers):
    inputs = made(onednn())
    gc.collect()
    assert [event[0] for event in producers] == ["create"]
    del inputs
    gc.collect()
    assert producers[1:] == [("release", 4711)]


def test_a_missing_producer_fails_the_recipe_by_name():
    if torch._C._jit_get_schemas_for_operator("_C::get_scheduler_metadata"):
        pytest.skip("vLLM's own operators are loaded")
    skipped = make(onednn())
    assert skipped.reason == "recipe_failed"
    assert "_C::create_onednn_mm_handler, which makes an argument" in skipped.detail


def test_metadata_of_an_operator_without_bounds_is_for_decode_and_says_so():
    inputs = made(
        foreign_call("_C::get_scheduler_metadata", seq_lens=i32(4), query_start_loc=i32(5))
    )
    assert inputs.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert inputs.seq_lens.min() >= 512
    assert inputs.seq_lens.max() == 1024
    assert "512 to 1024 are drawn" in inputs._inputs.assumptions[0]


@pytest.mark.parametrize("tokens", [4, 224])
def test_slots_are_computed_from_positions_that_the_blocks_hold(tokens):
    inputs = made(
        foreign_call("_C::compute_slot_mapping_kernel_impl", query_start_loc=i32(5),
                     positions=i64(tokens), block_table=i32(8, 4), slot_mapping=i64(4096),
                     block_size=128)
    )  # fmt: skip
    starts = inputs.query_start_loc.tolist()
    assert starts[0] == 0
    assert starts[-1] == tokens
    for begin, end in itertools.pairwise(starts):
        mine = inputs.positions[begin:end].tolist()
        assert mine == list(range(mine[0], mine[0] + end - begin))
        assert mine[0] >= 0
        assert mine[-1] < 4 * 128
    assert sorted(inputs.block_table.flatten().tolist()) == list(range(32))


def test_more_sequences_than_rows_of_the_table_fail_the_recipe():
    skipped = make(
        foreign_call("_C::compute_slot_mapping_kernel_impl", query_start_loc=i32(10),
                     positions=i64(9), block_table=i32(8, 4), slot_mapping=i64(64), block_size=16)
    )  # fmt: skip
    assert "9 sequences, but block_table has 8 rows" in skipped.detail


def cache_write(tokens, *, blocks):
    cache = f32(blocks, 2, 16, 8)
    return foreign_call(
        "_C::cpu_attn_reshape_and_cache", key=f32(tokens, 2, 8), value=f32(tokens, 2, 8),
        key_cache=cache, value_cache=cache, slot_mapping=i64(tokens),
    )  # fmt: skip


def test_written_slots_are_distinct_and_consecutive_in_each_block():
    slots = made(cache_write(100, blocks=50)).slot_mapping
    assert slots.unique().numel() == 100
    assert slots.min() >= 0
    assert slots.max() < 800
    for token in range(1, 100):
        if token % 16:
            assert slots[token] == slots[token - 1] + 1


def test_more_tokens_than_slots_fail_the_recipe():
    skipped = make(cache_write(33, blocks=2))
    assert "33 tokens for a cache of 32 slots" in skipped.detail


def test_rotary_positions_are_rows_of_the_table():
    inputs = made(
        foreign_call("_C::rotary_embedding", positions=i64(3, 700), query=f32(700, 8),
                     key=f32(700, 8), head_size=8, cos_sin_cache=f32(512, 8), is_neox=True)
    )  # fmt: skip
    assert inputs.positions[2].tolist() == [*range(512), *range(188)]
    assert inputs._inputs.recipe.endswith("; positions in [0, 512)")
    assert "no batch" in inputs._inputs.assumptions[0]


def test_a_recipe_can_assume_and_replace_only_a_tensor_that_is_there():
    def fill(call):
        call.assume("a guess")
        call.replace("absent", torch.zeros(1))

    recipe("custom::produced")(fill)
    try:
        skipped = make(foreign_call("custom::produced", there=f32(3)))
    finally:
        remove_recipe(fill)
    assert "no argument 'absent'; it has there" in skipped.detail
