"""The command ``opreplay tables``: what it builds, prints, writes and refuses."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest
import torch

from opreplay import table_command
from opreplay.tables import block_table, moe_sorting, seq_lens, topk_routing


def tables(*words: str) -> int:
    parser = argparse.ArgumentParser()
    table_command.add_arguments(parser)
    return table_command.main(parser.parse_args(words))


@pytest.fixture
def trace(tmp_path):
    """Two calls: another operator, then one with a cache, a block table, ids and weights."""

    def event(name: str, start: int, dims: list, types: list) -> dict:
        values = ["" for _ in dims]
        args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": 5,
            "args": args,
        }

    events = [
        event("aten::relu", 0, [[3]], ["float"]),
        event(
            "_C::attend",
            10,
            [[500, 16, 2, 8], [4, 9], [], [32, 2], [8, 64]],
            ["float", "int", "Scalar", "int", "float"],
        ),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def test_a_block_table_is_printed_and_written(tmp_path, capsys):
    path = tmp_path / "table.npz"
    assert tables("block", "--seqs", "4", "--blocks", "100", "--seed", "3", "-o", str(path)) == 0
    lens = seq_lens(4, high=25 * 16, seed=3)
    expected = block_table(lens, 16, 100, seed=3)
    with np.load(path) as written:
        assert sorted(written) == ["block_table", "seq_lens"]
        assert written["block_table"].tolist() == expected.table.tolist()
        assert written["seq_lens"].tolist() == lens.tolist()
    printed = capsys.readouterr().out
    assert f"block_table              int32 [4, {expected.table.size(1)}]" in printed
    assert f"longest                {int(lens.max())}" in printed
    assert "blocks in pool         100" in printed
    assert "exhausted              False" in printed
    assert "ms on cpu" in printed


def test_each_form_has_its_tensors(tmp_path):
    names = {}
    for form in ("csr", "tokens"):
        path = tmp_path / f"{form}.pt"
        tables("block", "--seqs", "4", "--blocks", "100", "--form", form, "-o", str(path))
        names[form] = sorted(torch.load(path))
    assert names == {
        "csr": ["kv_indices", "kv_indptr", "kv_last_page_len", "seq_lens"],
        "tokens": ["block_table", "req_to_token", "seq_lens"],
    }


def test_options_of_lengths_and_blocks_are_passed_on(tmp_path):
    path = tmp_path / "table.pt"
    tables(
        *("block", "--seqs", "6", "--blocks", "40", "--block-size", "8", "--kind", "constant"),
        *("--high", "100", "--total", "500", "--maximum", "90", "--order", "contiguous"),
        *("--reserve-block-zero", "--on-exhausted", "shrink_lengths", "-o", str(path)),
    )
    written = torch.load(path)
    lens = seq_lens(6, kind="constant", high=100, total=500, maximum=90)
    expected = block_table(
        lens, 8, 40, order="contiguous", reserve_block_zero=True, on_exhausted="shrink_lengths"
    )
    assert torch.equal(written["block_table"], expected.table)
    assert torch.equal(written["seq_lens"], expected.seq_lens)


def test_sizes_of_a_block_table_come_off_a_recorded_call(trace, tmp_path):
    path = tmp_path / "table.pt"
    tables(
        *("block", "--from", trace, "--call", "1", "--table-argument", "1"),
        *("--cache-argument", "0", "-o", str(path)),
    )
    written = torch.load(path)
    assert written["block_table"].shape == (4, 9)
    assert int(written["seq_lens"].max()) <= 9 * 16
    assert int(written["block_table"].max()) < 500


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("none", []),
        ("align", ["expert_ids", "num_tokens_post_padded", "sorted_token_ids"]),
        ("sorting", ["num_valid_ids", "sorted_expert_ids", "sorted_ids", "sorted_weights"]),
        (
            "grouped",
            ["inverse", "offsets_exclusive", "offsets_inclusive", "permutation"],
        ),
    ],
)
def test_each_layout_of_routing_has_its_tensors(layout, names, tmp_path, capsys):
    path = tmp_path / "moe.pt"
    tables(
        *("moe", "--tokens", "50", "--experts", "8", "--top-k", "2", "--groups", "4", "2"),
        *("--layout", layout, "--block-size", "16", "-o", str(path)),
    )
    written = torch.load(path)
    extra = ["tokens_per_expert"] if layout == "grouped" else []
    assert sorted(written) == sorted([*names, *extra, "topk_ids", "topk_weights"])
    routing = topk_routing(50, 8, 2, groups=(4, 2))
    assert torch.equal(written["topk_ids"], routing.topk_ids)
    assert "active experts" in capsys.readouterr().out
    if layout == "sorting":
        table = moe_sorting(routing.topk_ids, routing.topk_weights, 8, 16)
        assert torch.equal(written["sorted_ids"], table.sorted_ids)


def test_sizes_of_a_routing_come_off_a_recorded_call(trace, tmp_path):
    path = tmp_path / "moe.pt"
    tables(
        *("moe", "--from", trace, "--op", "_C::attend", "--ids-argument", "3"),
        *("--weights-argument", "4", "-o", str(path)),
    )
    assert torch.load(path)["topk_ids"].shape == (32, 2)


BAD_USE = {
    "no size": (["block", "--blocks", "9"], "--seqs is missing"),
    "suffix": (["block", "--seqs", "1", "-o", "x.txt"], r"x.txt: expected a name .* .npz or .pt"),
    "no trace": (["moe", "--ids-argument", "3"], "argument 3 is of a recorded call: give --from"),
    "negative call": (["block", "--from", "TRACE", "--call", "-1"], "--call >= 0, got -1"),
    "call": (["block", "--from", "TRACE", "--call", "7"], "there is no call 7$"),
    "op": (["block", "--from", "TRACE", "--op", "x::y"], "there is no call 0 of x::y"),
    "dims": (
        ["block", "--from", "TRACE", "--call", "1", "--table-argument", "0"],
        "_C::attend: argument 0 is not a tensor of 2 dims, got dims",
    ),
    "position": (
        ["block", "--from", "TRACE", "--call", "1", "--cache-argument", "9"],
        "argument 9 is not a tensor, got dims",
    ),
}


@pytest.mark.parametrize("case", BAD_USE, ids=str)
def test_bad_use_is_refused_in_one_sentence(case, trace):
    words, message = BAD_USE[case]
    with pytest.raises(ValueError, match=message):
        tables(*(trace if word == "TRACE" else word for word in words))
