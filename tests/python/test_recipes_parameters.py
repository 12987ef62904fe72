import re

import pytest
from made_calls import foreign_call, i32, make

from opreplay.attempt import Attempt
from opreplay.cli import main
from opreplay.options import ReplayOptions
from opreplay.recipes.parameters import Parameter, read_parameters

KNOWN = (Parameter("a.mode", "x", "how", ("x", "y")), Parameter("a.n", 3, "tokens"))


def test_values_have_the_type_of_their_default():
    assert read_parameters(KNOWN, {}) == {"a.mode": "x", "a.n": 3}
    assert read_parameters(KNOWN, {"a.n": "12", "a.mode": "y"}) == {"a.mode": "y", "a.n": 12}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"a.m": "1"}, "no recipe has a parameter 'a.m'; there are: a.mode, a.n"),
        ({"a.mode": "z"}, "a.mode is 'z', expected one of x, y"),
        ({"a.n": "many"}, "a.n is 'many', expected int [tokens]"),
    ],
)
def test_bad_settings_are_one_clear_sentence(given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_parameters(KNOWN, given)


def align():
    return foreign_call(
        "_moe_C::moe_align_block_size", topk_ids=i32(50, 2), num_experts=8, block_size=16,
        sorted_token_ids=i32(220), experts_ids=i32(14), num_tokens_post_pad=i32(1),
    )  # fmt: skip


def test_the_distribution_of_experts_can_be_set():
    uniform = make(align())
    same = make(align(), parameters={"moe.distribution": "one_hot", "other.n": "1"})
    assert uniform.arguments[0].unique().numel() == 8
    assert same.arguments[0].unique().numel() == 2
    assert same.recipe == (
        "50 tokens of 2 of 8 experts, one_hot; 2 active, max/mean load 4.00; "
        "128 rows in blocks of 16 for 100 pairs"
    )


def test_an_unknown_parameter_ends_the_run_before_any_call():
    options = ReplayOptions(recipe_parameters={"moe.t": "1"})
    with pytest.raises(ValueError, match=r"moe\.t.*moe\.distribution, .*moe\.s"):
        Attempt(options, device="cpu")


def test_the_command_lists_recipes_with_their_parameters(capsys):
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert "opreplay.recipes.aten_index.embedding (built-in): aten::embedding\n" in printed
    assert "moe.s=0.5 [exponent of zipf]" in printed


def test_a_setting_without_a_value_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "trace.json", "--recipe", "moe.s"])
    assert "'moe.s' is not NAME=VALUE" in capsys.readouterr().err
