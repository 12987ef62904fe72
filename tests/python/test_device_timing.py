"""Device times on their way from the C++ timer to the row; the timer itself is tested in C++."""

import json
from types import SimpleNamespace

import pytest
import torch
from kineto_events import op, write
from rich.console import Console

import opreplay
from opreplay import _C, cli, timing
from opreplay.attempt import Attempt
from opreplay.inputs import Inputs
from opreplay.options import ReplayOptions
from opreplay.replay import make_plan, replay
from opreplay.report.terminal import print_launch_bound
from opreplay.stat import TimingOptions
from opreplay.trace import Selection, read_trace

MATMUL = op(
    "aten::mm", types=["float"] * 2, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]],
    values=["", ""],
)  # fmt: skip


def samples(*ns, route="graph", floor_ns=500.0):
    return SimpleNamespace(
        ns=list(ns), batch=1024, discarded=2, stop_reason="relative_error", route=route,
        floor_ns=floor_ns,
    )  # fmt: skip


class Timer:
    """Stands in for the C++ timer: keeps what it is asked, answers what it is told."""

    def __init__(self, **found):
        self.asked = []
        self.found = {
            "host": samples(6000, 6100, 6200, route="loop", floor_ns=0.0),
            "hot": samples(2900, 3000, 3100),
            "cold": samples(7000, 7000),
            "latency": samples(11_000, route="stream", floor_ns=9000.0),
            "notes": [],
            **found,
        }

    def time(self, calls, plan, cold):
        self.asked.append((calls, plan, cold))
        return SimpleNamespace(**self.found)


@pytest.fixture
def device(monkeypatch):
    """Has the CPU pass for a device with a back end."""

    def install(timer):
        monkeypatch.setattr(_C, "has_device_api", lambda device: True)
        monkeypatch.setattr(timing, "_device_timer", lambda device: timer)
        monkeypatch.setattr("opreplay.attempt.kernel_times", lambda call, mode: {"gemm": (1, 3.0)})
        return timer

    return install


def relu(floats=256):
    (handle,) = (o for o in _C.OperatorIndex().overloads("aten::relu") if o.overload == "")
    a = torch.ones(floats)
    return Inputs((a,), (), None, a.nbytes), _C.Call(handle, [a])


def measured(options=None):
    inputs, call = relu()
    options = options or TimingOptions()
    return timing.measure(inputs, options, call=call, mode="inference", device="cpu")


def test_the_four_numbers_stand_side_by_side(device):
    device(Timer())
    found = measured()
    assert found.host_ns.median == 6100
    assert (found.hot_us.median, found.hot_us.route) == (3.0, "graph")
    assert (found.cold_us.median, found.cold_us.samples) == (7.0, 2)
    assert (found.latency_us.median, found.latency_us.route) == (11.0, "stream")
    assert found.hot_us.discarded == 2


def test_launch_bound_compares_issuing_with_the_device(device):
    device(Timer())
    found = measured()
    assert found.launch_bound is True
    assert found.graph_gain == pytest.approx(6.1 / 3.0)
    device(Timer(hot=samples(50_000)))
    found = measured()
    assert found.launch_bound is False
    assert found.graph_gain == 1


def test_bandwidth_is_bytes_over_the_hot_time(device):
    device(Timer())
    assert measured().gbps == pytest.approx(1024 / 3000)


def test_less_than_three_floors_is_marked(device):
    device(Timer(hot=samples(1499), latency=samples(27_000, floor_ns=9000.0)))
    found = measured()
    assert found.hot_us.at_floor
    assert found.hot_us.floor == 0.5
    assert not found.latency_us.at_floor


def test_a_call_without_device_work_has_a_host_time_and_a_note(device):
    device(Timer(hot=None, cold=None, notes=["it queues no work"]))
    found = measured()
    assert found.hot_us is None
    assert found.launch_bound is None
    assert found.notes == ("it queues no work",)


@pytest.mark.parametrize(
    ("options", "warmup_ns", "cold"),
    [
        (TimingOptions(), 200_000_000, "all"),
        (TimingOptions(warmup_ms=5), 5_000_000, "all"),
        (TimingOptions(cold_arguments="weights"), 200_000_000, "weights"),
        (TimingOptions(cold=False), 200_000_000, "off"),
    ],
)
def test_the_timer_is_asked_for_what_the_options_say(device, options, warmup_ns, cold):
    timer = device(Timer())
    measured(options)
    ((_, plan, asked),) = timer.asked
    assert (plan.warmup_ns, asked) == (warmup_ns, cold)
    assert plan.limit_ns == options.time_s * 1e9


def test_rows_carry_device_times_and_kernels(device, tmp_path):
    device(Timer(notes=["device times come from the stream route"]))
    (call,) = read_trace(str(write(tmp_path / "t.json", {"traceEvents": [MATMUL]}))).calls()
    outcome = Attempt(ReplayOptions(), device="cpu")(call, lambda: None)
    assert outcome.timing.hot_us.median == 3.0
    assert outcome.kernels_us == {"gemm": 3.0}
    assert outcome.kernels_replayed == (("gemm", 1),)
    assert outcome.assumptions[-1] == "device times come from the stream route"


def test_an_accelerator_error_spoils_the_worker(device, tmp_path, monkeypatch):
    timer = device(Timer())

    def fail(calls, plan, cold):
        raise torch.AcceleratorError("device is gone")

    timer.time = fail
    (call,) = read_trace(str(write(tmp_path / "t.json", {"traceEvents": [MATMUL]}))).calls()
    outcome = Attempt(ReplayOptions(), device="cpu")(call, lambda: None)
    assert (outcome.reason, outcome.device_broken) == ("failed", True)


def sequence_row(tmp_path, *events, device="cpu", **selection):
    trace = write(tmp_path / "s.json", {"traceEvents": list(events)})
    options = ReplayOptions(device=device, isolation=False, sequence=True)
    (row,) = replay(str(trace), Selection(**selection), options=options).rows
    return row


def test_a_sequence_is_timed_in_recorded_order_as_one_unit(device, tmp_path):
    timer = device(Timer())
    relu = op("aten::relu", types=["float"], dims=[[8]], strides=[[1]], values=[""], ts=20, dur=4)
    again = {**MATMUL, "ts": 40, "args": {**MATMUL["args"], "External id": 9}}
    row = sequence_row(tmp_path, again, relu, MATMUL)

    ((calls, _, _),) = timer.asked
    assert [len(call.arguments()) for call in calls] == [2, 1, 2]
    assert row.op == "3 calls in recorded order"
    assert row.host.total == MATMUL["dur"] * 2 + 4
    assert row.timing.hot_us.median == 3.0
    assert row.assumptions[0].startswith("no call of the sequence reads")


def test_a_sequence_tells_which_call_cannot_run(device, tmp_path):
    device(Timer())
    row = sequence_row(tmp_path, MATMUL, op("nobody::knows", ts=20))
    assert row.detail.startswith("call 2 of 2, nobody::knows: ")


def test_what_a_call_of_a_sequence_raises_fails_its_row(device, tmp_path):
    timer = device(Timer())

    def fail(calls, plan, cold):
        raise RuntimeError("CUDA error: out of luck")

    timer.time = fail
    row = sequence_row(tmp_path, MATMUL)
    assert (row.reason, row.detail) == ("failed", "RuntimeError: CUDA error: out of luck")


def test_a_sequence_needs_a_device_with_graphs_and_a_trace(tmp_path):
    assert sequence_row(tmp_path, MATMUL).reason == "backend_missing"
    with pytest.raises(ValueError, match="limit instead of top"):
        sequence_row(tmp_path, MATMUL, top=1)
    with pytest.raises(ValueError, match="no operator call is left"):
        sequence_row(tmp_path, MATMUL, ops=("aten::add",))
    plan = make_plan(str(tmp_path / "s.json"), options=ReplayOptions(isolation=False))
    with pytest.raises(ValueError, match="keeps no order of calls"):
        replay(plan, options=ReplayOptions(isolation=False, sequence=True))


def test_kernels_of_a_profile_are_added_up_by_name():
    def event(name, us, kind="CUDA"):
        return SimpleNamespace(
            name=name, device_time_total=us, device_type=SimpleNamespace(name=kind)
        )

    events = [event("fill", 1.0), event("gemm", 4.0), event("aten::mm", 9.0, "CPU")]
    assert timing.sum_kernels([*events, event("fill", 2.0)]) == {"gemm": (1, 4.0), "fill": (2, 3.0)}


def test_profile_once_makes_one_warmed_call():
    calls = []
    library = torch.library.Library("opreplay_once", "DEF")
    library.define("look(Tensor a) -> Tensor")
    library.impl("look", lambda a: (calls.append(1), a.clone())[1], "CPU")
    (handle,) = _C.OperatorIndex().overloads("opreplay_once::look")
    once = timing.profile_once(
        _C.Call(handle, [torch.ones(1)]), name="look", mode="inference", device="cpu"
    )
    assert len(calls) == 2  # one to warm up, one in the range
    assert once.host_ns.samples == 1
    assert once.notes == ("one call for a profiler from outside: nothing was timed",)


def test_profile_once_is_a_flag_of_run(tmp_path):
    trace = write(tmp_path / "t.json", {"traceEvents": [MATMUL]})
    out = tmp_path / "out.json"
    arguments = ["run", str(trace), "--no-isolation", "--device", "cpu", "--json", str(out)]
    assert cli.main([*arguments, "--profile-once"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["timing"]["host_ns"]["samples"] == 1
    assert row["timing"]["cold_us"] is None


def test_cold_off_takes_no_cold_time(tmp_path):
    trace = write(tmp_path / "t.json", {"traceEvents": [MATMUL]})
    out = tmp_path / "out.json"
    arguments = ["run", str(trace), "--no-isolation", "--device", "cpu", "--json", str(out)]
    assert cli.main([*arguments, "--time", "0.002", "--cold", "off", "--warmup-ms", "1"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["timing"]["cold_us"] is None


def launch_bound_lines(*rows):
    console = Console(width=100, record=True, file=SimpleNamespace(write=len, flush=int))
    print_launch_bound(SimpleNamespace(rows=rows), console)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def row(name, count, host_us, hot_us):
    timed = SimpleNamespace(
        host_ns=SimpleNamespace(median=host_us * 1000),
        hot_us=SimpleNamespace(median=hot_us),
        launch_bound=host_us > hot_us,
        graph_gain=max(host_us, hot_us) / hot_us,
    )
    return SimpleNamespace(op=name, count=count, timing=timed)


def test_launch_bound_calls_are_listed_by_what_a_graph_saves():
    lines = launch_bound_lines(
        row("aten::mm", 10, 5.0, 80.0), row("aten::add", 10, 6.0, 2.0), row("norm", 1000, 7.0, 6.0)
    )
    assert lines[1:] == [
        ["norm", "1,000", "7.00", "6.00", "1.17x", "1.000"],
        ["aten::add", "10", "6.00", "2.00", "3.00x", "0.040"],
    ]


def test_without_device_times_nothing_is_said_to_be_launch_bound(tmp_path, capsys):
    assert launch_bound_lines(row("aten::mm", 1, 5.0, 80.0)) == [
        ["No", "call", "is", "launch-bound."]
    ]
    trace = write(tmp_path / "t.json", {"traceEvents": [MATMUL]})
    here = ["--no-isolation", "--device", "cpu", "--time", "0.002"]
    assert cli.main(["run", str(trace), *here, "--sort", "launch-bound"]) == 0
    assert "Nothing was timed on an accelerator." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "named"),
    [({"cold_arguments": "some"}, "all or weights"), ({"warmup_ms": 0}, "warmup")],
)
def test_options_of_devices_are_checked(options, named):
    with pytest.raises(ValueError, match=named):
        TimingOptions(**options)


def test_a_device_without_a_back_end_is_refused_by_name():
    assert not _C.has_device_api("cpu")
    with pytest.raises(NotImplementedError, match="no GPU part for cpu"):
        _C.DeviceTimer("cpu")
    with pytest.raises(NotImplementedError, match="OPREPLAY_GPU=CUDA or HIP"):
        opreplay.Graph([relu()[1]], "cpu")
