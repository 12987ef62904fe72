"""The demo: what its model computes and what its trace holds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from opreplay.demo import DecodeStep, record_decode, recorded_step
from opreplay.trace import Selection, read_trace


@pytest.fixture
def step():
    return DecodeStep("cpu")


def test_attention_reads_the_pages_that_it_wrote(step):
    """A cache without pages, filled with the same entries, gives the same attention."""
    state = torch.randn(step.sequences, step.width, generator=torch.Generator().manual_seed(1))
    step.keys.normal_(generator=torch.Generator().manual_seed(2))
    step.values.normal_(generator=torch.Generator().manual_seed(3))
    mixed = step._attend(state)

    query, _, _ = functional.linear(state, step.query_key_value).chunk(3, dim=-1)
    for index in range(step.sequences):
        slots = [
            int(block) * step.block + offset
            for block in step.block_table[index]
            for offset in range(step.block)
        ][: step.length + 1]
        keys, values = step.keys[slots].transpose(0, 1), step.values[slots].transpose(0, 1)
        heads = query[index].view(step.heads, 1, step.head_width)
        weights = (heads @ keys.transpose(1, 2) / step.head_width**0.5).softmax(dim=-1)
        expected = functional.linear((weights @ values).reshape(-1), step.attention_out)
        torch.testing.assert_close(mixed[index], expected)


def test_experts_are_mixed_as_a_loop_over_tokens_does(step):
    state = torch.randn(step.sequences, step.width, generator=torch.Generator().manual_seed(1))
    mixed = step._mix_experts(state)

    for token, result in zip(state, mixed, strict=True):
        scores = (step.router @ token).softmax(dim=0)
        best = scores.argsort(descending=True)[: step.top_k].tolist()
        expected = torch.zeros(step.width)
        for expert in best:
            gate, up = (step.gate_up[expert] @ token).chunk(2)
            hidden = functional.silu(gate) * up
            expected += scores[expert] / scores[best].sum() * (step.down[expert] @ hidden)
        torch.testing.assert_close(result, expected)


def test_tokens_are_the_vocabularys(step):
    tokens = step(torch.arange(step.sequences))

    assert tokens.shape == (step.sequences,)
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < step.vocabulary


def test_a_recorded_trace_holds_the_operators_of_a_decode_step(tmp_path):
    record_decode(tmp_path / "demo.json.gz", device="cpu")

    groups = read_trace(tmp_path / "demo.json.gz").groups(Selection(level="outermost"))
    names = {group.call.name for group in groups}

    assert {"aten::embedding", "aten::scaled_dot_product_attention", "aten::topk"} <= names
    assert {group.call.step for group in groups} <= {f"decode_step_{i}" for i in range(4)}
    assert all(group.call.arguments is not None for group in groups)
    assert all(group.count % 4 == 0 for group in groups)


def test_a_trace_without_a_path_is_temporary(tmp_path):
    with recorded_step(device="cpu") as temporary:
        assert temporary.exists()
    with recorded_step(tmp_path / "kept.json", device="cpu") as kept:
        pass

    assert not temporary.exists()
    assert kept.exists()
