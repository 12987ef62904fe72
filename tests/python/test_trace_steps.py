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
            Phase(9, 8155, 8430),
            Phase(37, 37, 34489),
        ),
        ("execute_new_3_cached_5", Phase(3, None, None), Phase(5, 5, None)),
        ("step[EXTEND bs=15 toks=15360]", Phase(15, 15360, None), NONE),
        ("step[extend bs=2 toks=30 c_sqsq=5 c_sqsk=6 c_sk=44]", Phase(2, 30, 44), NONE),
        ("step[DECODE bs=32 g_sqsq=32 g_sqsk=500 g_sk=500]", NONE, Phase(32, 32, 500)),
        (
            "step[MIXED bs=5 c=2 g=3 c_sq=20 c_sk=25 c_sqsq=1 c_sqsk=1 g_sq=3 g_sk=90]",
            Phase(2, 20, 25),
            Phase(3, 3, 90),
        ),
        ("prefill[bs=1 tok=7803 ctx=7803]", Phase(1, 7803, 7803, lengths=(7803,)), NONE),
        ("prefill[bs=2 tok=30 ctx=[10, 20]]", Phase(2, 30, 30, lengths=(10, 20)), NONE),
        ("prefill[bs=8 tok=80 ctx=[10, 10, 10...+5]]", Phase(8, 80, None), NONE),
        ("decode[bs=117/128 tok=234 d=117 spec=1]", NONE, Phase(117, 234, None)),
        ("eager_decode[bs=2 tok=2 ctx=[9, 11]]", NONE, Phase(2, 2, 20, lengths=(9, 11))),
    ],
)
def test_each_form_of_the_engines_is_read(name, context, generation):
    assert parse_step(name) == Step(context, generation)


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#3", "capture_32_FULL", "dummy_decode[bs=4 tok=4]", "step[IDLE bs=0]", "step[x]"],
)
def test_other_names_tell_nothing_of_a_batch(name):
    assert parse_step(name) is None


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
