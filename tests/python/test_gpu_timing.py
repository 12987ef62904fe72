"""Device times on a real GPU: what the synthetic accelerator cannot say."""

import pytest
import torch

from opreplay import _C
from opreplay.stat import TimingOptions
from opreplay.timing import kernel_times, measure_unit

pytestmark = pytest.mark.gpu

QUICK = TimingOptions(time_s=0.3, warmup_ms=200)


def call(name, *arguments, overload=""):
    handle = next(op for op in _C.OperatorIndex().overloads(name) if op.overload == overload)
    return _C.Call(handle, list(arguments))


def timed(*calls, options=QUICK):
    return measure_unit(calls, options, mode="inference", device="cuda")


def test_cold_is_slower_than_hot_for_a_quarter_of_the_cache():
    floats = _C.DeviceTimer("cuda").cache_bytes // 4 // 4 // 2  # read and written
    found = timed(call("aten::relu", torch.ones(floats, device="cuda")))
    assert found.cold_us.median >= 1.3 * found.hot_us.median


def test_twice_the_work_takes_about_twice_the_time():
    wide = [call("aten::relu", torch.ones(n << 24, device="cuda")) for n in (4, 8)]
    short, long = (timed(one, options=TimingOptions(cold=False)).hot_us.median for one in wide)
    assert 1.8 < long / short < 2.2


def test_host_time_does_not_depend_on_the_device_time():
    calls = [call("aten::relu", torch.ones(n, device="cuda")) for n in (1 << 10, 1 << 24)]
    small, large = (timed(one, options=TimingOptions(cold=False)).host_ns.median for one in calls)
    assert large == pytest.approx(small, rel=0.15)


def test_graph_and_stream_agree():
    a = torch.ones(1 << 22, device="cuda")
    by_graph = timed(call("aten::relu", a), options=TimingOptions(cold=False))
    # nonzero asks the device how much it found, and so cannot be captured
    waits = timed(call("aten::nonzero", a), options=TimingOptions(cold=False))
    assert by_graph.hot_us.route == "graph"
    assert waits.hot_us.route == "stream"
    assert any("waits for the device" in note or "captured" in note for note in waits.notes)


def test_several_calls_in_a_graph_take_about_their_sum():
    a = torch.ones(1 << 24, device="cuda")
    options = TimingOptions(cold=False)
    one = timed(call("aten::relu", a), options=options).hot_us.median
    three = timed(*[call("aten::relu", a) for _ in range(3)], options=options).hot_us.median
    assert three == pytest.approx(3 * one, rel=0.1)


def test_a_graph_replays_into_its_outputs():
    a = torch.zeros(8, device="cuda")
    graph = _C.Graph([call("aten::exp", a)], "cuda")
    a.fill_(1)
    graph.replay()
    graph.synchronize()
    assert graph.outputs()[0].cpu().tolist() == pytest.approx([2.7182818] * 8)
    assert graph.nodes >= 1


def test_the_profiler_names_the_kernels_of_a_call():
    a = torch.ones(256, 256, device="cuda")
    kernels = kernel_times(call("aten::mm", a, a), mode="inference")
    assert sum(time for _, time in kernels.values()) > 0
