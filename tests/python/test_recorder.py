import pytest
import torch

import opreplay


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_recorded_model_has_all_that_replay_needs(tmp_path, name):
    with opreplay.record(tmp_path / name):
        torch.mm(torch.ones(2, 3), torch.ones(4, 3).t())
    trace = opreplay.read_trace(tmp_path / name)
    (call,) = trace.calls("aten::mm")
    assert [(a.type, a.dims, a.strides) for a in call.arguments] == [
        ("float", (2, 3), (3, 1)),
        ("float", (3, 4), (1, 3)),
    ]
    assert trace.missing == ()


def test_nothing_is_written_where_the_block_fails(tmp_path):
    with pytest.raises(RuntimeError, match="stop"), opreplay.record(tmp_path / "out.json"):
        raise RuntimeError("stop")
    assert not (tmp_path / "out.json").exists()


def test_a_name_with_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.json"), opreplay.record(tmp_path / "o.pt"):
        pass
