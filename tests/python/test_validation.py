"""Whether a replay stands for the trace: kernels of the call, and times on the same machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kineto_events import kernel, launch, op, trace_of, write
from made_reports import ENVIRONMENT, row, stat, timing

from opreplay.report.results import Report
from opreplay.report.terminal import make_console, print_totals
from opreplay.trace import RecordedTimes, read_trace
from opreplay.trace.devices import device_names
from opreplay.validation import check_kernels, check_time, normalised

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<long>, std::array<char*, 1ul>)",
            "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<int>>(int)",
        ),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax_of::softmax"),
        ("_fwd_kernel_0d1d2d3de", "_fwd_kernel_0d1de"),
        ("triton_poi_fused_add_3", "triton_poi_fused_add_11"),
        ("ampere_sgemm_128x64_tn_0a1b2c3d4e5f", "ampere_sgemm_128x64_tn"),
    ],
)
def test_names_are_equal_but_for_what_differs_from_build_to_build(one, other):
    if "anonymous" in one:
        assert normalised(one) == "anonymous::softmax"
    else:
        assert normalised(one) == normalised(other)


def test_names_of_other_kernels_stay_apart():
    names = ["gemm_128x64", "gemm_256x64", "fused_add", "fused_mul", "reduce<float>"]
    assert len({normalised(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("recorded", "replayed", "state", "missing", "extra"),
    [
        ([("gemm<1>", 2)], [("gemm<2>", 2)], "MATCH", (), ()),
        ([("gemm", 2)], [("gemm", 1)], "PARTIAL", (("gemm", 1),), ()),
        ([("gemm", 1)], [("gemm", 1), ("fill", 1)], "PARTIAL", (), (("fill", 1),)),
        ([("gemm", 1)], [("fill", 1)], "MISMATCH", (("gemm", 1),), (("fill", 1),)),
        ([("gemm", 1)], [], "MISMATCH", (("gemm", 1),), ()),
    ],
)
def test_kernels_are_compared_as_multisets(recorded, replayed, state, missing, extra):
    check = check_kernels(recorded, replayed)
    assert (check.state, check.missing, check.extra) == (state, missing, extra)


@pytest.mark.parametrize(
    ("recorded", "replayed", "why"),
    [([], [("gemm", 1)], "links no kernel"), ([("gemm", 1)], None, "was profiled")],
)
def test_what_cannot_be_compared_is_unknown(recorded, replayed, why):
    check = check_kernels(recorded, replayed)
    assert check.state == "UNKNOWN"
    assert why in check.why


def test_r10_a_kernel_of_another_call_of_the_trace_is_no_match(tmp_path):
    trace = trace_of(
        tmp_path,
        op("aten::a", ts=0, dur=10, types=["float"], dims=[[2]]),
        launch(ts=1, dur=1, correlation=1),
        kernel("kernel_of_a", ts=100, dur=3, correlation=1),
        op("aten::b", ts=20, dur=10, types=["float"], dims=[[2]]),
        launch(ts=21, dur=1, correlation=2),
        kernel("kernel_of_b", ts=110, dur=3, correlation=2),
    )
    first = next(group for group in trace.groups() if group.call.name == "aten::a")
    for launched, state in (("kernel_of_a", "MATCH"), ("kernel_of_b", "MISMATCH")):
        made = row(kernels_recorded=first.kernels, kernels_replayed=((launched, 1),))
        assert made.kernel_check.state == state
        assert made.to_json()["kernel_check"]["state"] == state


@pytest.mark.parametrize(
    ("recorded", "state"), [(8.0, "WITHIN"), (25.0, "WITHIN"), (7.9, "OUTSIDE"), (25.1, "OUTSIDE")]
)
def test_a_time_lies_between_hot_and_cold_with_a_quarter_of_room(recorded, state):
    found = check_time(recorded, 10.0, 20.0, recorded_on=(H100,), device_name=H100)
    assert (found.state, found.why) == (state, "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recorded_us": None}, "links no kernel"),
        ({"device_name": None}, f"recorded on {H100}, and replayed on a CPU"),
        ({"device_name": "AMD Instinct MI300X"}, "replayed on AMD Instinct MI300X"),
        ({"recorded_on": ()}, "an accelerator that the trace doesn't name"),
        ({"recorded_on": (H100, "NVIDIA A100")}, f"NVIDIA A100, {H100}"),
        ({"hot_us": None}, "no hot and cold"),
    ],
)
def test_a_time_of_another_machine_is_not_judged(change, why):
    given = {
        "recorded_us": 1.0, "hot_us": 1.0, "cold_us": 1.0, "recorded_on": (H100,),
        "device_name": H100, **change,
    }  # fmt: skip
    times = [given.pop(name) for name in ("recorded_us", "hot_us", "cold_us")]
    found = check_time(*times, **given)
    assert found.state == "UNKNOWN"
    assert why in found.why


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "MI300X"}, {"name": ""}],',
         ("MI300X",)),
        (b'{"deviceProperties": [], "traceEvents": [', ()),
        (b'{"deviceProperties": {"name": "x"}, "traceEvents": [', ()),
        (b'{"deviceProperties": [{"name": ', ()),
        (b'{"traceEvents": [', ()),
    ],
)  # fmt: skip
def test_the_accelerators_of_a_trace_are_read_from_its_text(head, names):
    assert device_names(head) == names


def test_accelerators_are_found_before_and_behind_the_events(tmp_path):
    properties = ("deviceProperties", [{"id": 0, "name": "MI300X"}])
    events = ("traceEvents", [op()])
    for place, fields in enumerate(([properties, events], [events, properties])):
        path = write(tmp_path / f"{place}.json", dict(fields))
        assert read_trace(path).devices == ("MI300X",)
    assert trace_of(tmp_path, op()).devices == ()


def test_a_report_judges_rows_by_the_machines_of_both_sides():
    timed = replace(timing(stat(), hot=stat(median=3.0)), cold_us=stat(median=4.0))
    made = row(device=RecordedTimes(3.0, 3.0, 3.0), timing=timed)
    for device, state in ((H100, "WITHIN"), (None, "UNKNOWN")):
        ran_on = replace(ENVIRONMENT, device_name=device)
        written = Report((made,), ran_on, ("opreplay", "run"), (H100,)).to_json()
        assert written["recorded_on"] == [H100]
        assert written["rows"][0]["time_check"]["state"] == state


def test_the_totals_say_what_was_found(capsys):
    timed = replace(timing(stat(), hot=stat(median=3.0)), cold_us=stat(median=4.0))
    device = RecordedTimes(3.0, 3.0, 3.0)
    rows = [
        row(signature=str(n), device=device, timing=timed, kernels_recorded=(("a", 1),),
            kernels_replayed=((name, 1),))
        for n, name in enumerate("aab")
    ]  # fmt: skip
    for name, sentence in (
        (H100, "3 of 3 recorded device times lie between hot / 1.25 and cold x 1.25."),
        (None, f"not judged: it was recorded on {H100}, and replayed on a CPU."),
    ):
        ran_on = replace(ENVIRONMENT, device_name=name)
        print_totals(Report(tuple(rows), ran_on, ("opreplay", "run"), (H100,)), make_console())
        said = capsys.readouterr().out
        assert "Kernels, recorded against replayed: 2 MATCH, 1 MISMATCH." in said
        assert sentence in said
