"""Names are those that the engines write; totals are by hand."""

import pytest
from kineto_events import op, trace_of

from opreplay.trace.steps import Phase, Step, carry_on, parse_step

NONE = Phase()


@pytest.mark.parametrize(
    ("name", "context", "generation"),
    [
        ("execute_context_4(224)_generation_0(0)", Phase(4, 224, None), NONE),
        ("execute_context_0(0)_generation_4(4)", NONE, Phase(4, 4, None)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)"
            "_generation_37(sq37sk34489sqsq37sqsk34489)",
            Phase(9, 8155, 8430, squares=7475785, products=7671310),
            Phase(37, 37, 34489, squares=37, products=34489),
        ),
        ("execute_new_3_cached_5", Phase(3, None, None), Phase(5, 5, None)),
        ("step[EXTEND bs=15 toks=15360]", Phase(15, 15360, None), NONE),
        (
            "step[extend bs=2 toks=30 c_sqsq=5 c_sqsk=6 c_sk=44]",
            Phase(2, 30, 44, squares=5, products=6),
            NONE,
        ),
        (
            "step[DECODE bs=32 g_sqsq=32 g_sqsk=500 g_sk=500]",
            NONE,
            Phase(32, 32, 500, squares=32, products=500),
        ),
        (
            "step[MIXED bs=5 c=2 g=3 c_sq=20 c_sk=25 c_sqsq=1 c_sqsk=1 g_sq=3 g_sk=90]",
            Phase(2, 20, 25, squares=1, products=1),
            Phase(3, 3, 90),
        ),
        ("step[mixed bs=5 ext=20 dec=3]", Phase(2, 20, None), Phase(3, 3, None)),
        ("prefill[bs=1 tok=7803 ctx=7803]", Phase(1, 7803, 7803, lengths=(7803,)), NONE),
        ("prefill[bs=2 tok=30 ctx=[10, 20]]", Phase(2, 30, 30, lengths=(10, 20)), NONE),
        ("prefill[bs=8 tok=80 ctx=[10, 10, 10...+5]]", Phase(8, 80, None), NONE),
        ("decode[bs=117/128 tok=234 d=117 spec=1]", NONE, Phase(117, 234, None)),
        (
            "prefill[bs=2 tok=30 sqsq=500 sqsk=620 sk=40]",
            Phase(2, 30, 40, squares=500, products=620),
            NONE,
        ),
        ("decode[bs=5 tok=70 d=3 spec=1 p=2]", Phase(2, 64, None), Phase(3, 6, None)),
        ("capture_32_FULL", NONE, Phase(32, 32, None)),
        ("capture_16_DECODE", NONE, Phase(16, 16, None)),
        ("capture_graph_bs_8", NONE, Phase(8, 8, None)),
        ("eager_decode[bs=2 tok=2 ctx=[9, 11]]", NONE, Phase(2, 2, 20, lengths=(9, 11))),
    ],
)
def test_each_form_of_the_engines_is_read(name, context, generation):
    assert parse_step(name) == Step(context, generation)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "capture_8192_PIECEWISE",
        "dummy_decode[bs=4 tok=4]",
        "step[IDLE bs=0]",
        "step[x]",
        "step[MIXED bs=2 ext=20 dec=3]",
        "decode[bs=3 tok=9 p=4]",
        "decode[bs=5 tok=2 d=3 p=2]",
        "prefill[bs=2 tok=30 ctx=[10, 8]]",
        "execute_18_context_2(sq18sk17sqsq164sqsk164)_generation_0(sq0sk0sqsq0sqsk0)",
        "execute_context_2(18)_generation_-5(5)",
    ],
)
def test_other_names_tell_nothing_of_a_batch(name):
    assert parse_step(name) is None


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("execute_new_3_cached_5", "taken to generate"),
        ("execute_new_3_cached_0", ""),
        ("capture_32_FULL", "taken for 32 sequences that generate"),
        ("execute_context_0(0)_generation_4(4)", ""),
    ],
)
def test_what_a_form_leaves_open_is_said(name, guess):
    found = parse_step(name).guess
    assert guess in found
    assert bool(guess) == bool(found)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_2(30)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_4(4)", "decode"),
        ("execute_context_2(30)_generation_4(4)", "mixed"),
        ("execute_context_0(0)_generation_0(0)", "idle"),
    ],
)
def test_a_step_has_the_phase_of_its_sequences(name, phase):
    assert parse_step(name).phase == phase
    assert parse_step(name).annotation == name


def keys_of(*names):
    return [step and step.generation.keys for step in carry_on([parse_step(n) for n in names])]


def test_generation_goes_on_from_the_prompts_and_grows_by_a_token_a_step():
    decode = "execute_context_0(0)_generation_4(4)"
    assert keys_of("execute_context_4(224)_generation_0(0)", decode, decode) == [0, 228, 232]
    (_, step) = carry_on([parse_step("execute_context_4(224)_generation_0(0)"), parse_step(decode)])
    assert step.generation.carried


def test_sequences_that_end_are_of_mean_length():
    assert keys_of(
        "execute_context_4(200)_generation_0(0)", "execute_context_0(0)_generation_3(3)"
    ) == [0, 153]


def test_sequences_from_before_the_trace_have_no_length():
    decode = "execute_context_0(0)_generation_4(4)"
    assert keys_of(decode, "execute_context_2(20)_generation_4(4)", decode) == [None, None, None]
    assert keys_of("other", "execute_context_1(7)_generation_0(0)") == [None, 0]


def scope(name, ts, dur):
    return op(name, ts=ts, dur=dur, cat="user_annotation")


def test_calls_know_the_batch_of_their_step_through_scopes_and_second_names(tmp_path):
    trace = trace_of(
        tmp_path,
        scope("execute_context_2(30)_generation_0(0)", 0, 100),
        scope("step[EXTEND bs=2 toks=30]", 10, 80),
        scope("gpu_model_runner: forward", 20, 50),
        op("aten::mm", ts=30, dur=5),
        scope("execute_context_0(0)_generation_2(2)", 200, 100),
        op("aten::mm", ts=230, dur=5),
        op("aten::mm", ts=400, dur=5),
    )
    prompts, generating, outside = trace.calls("aten::mm")
    assert prompts.batch == Step(Phase(2, 30, None), NONE)
    assert generating.batch == Step(NONE, Phase(2, 2, 32, carried=True))
    assert outside.batch is None
