"""Timing: what is called, how often, and what the numbers are told with; never how fast."""

import math
import time

import pytest
import torch

from opreplay import _C
from opreplay.inputs import Inputs
from opreplay.stat import TimingOptions
from opreplay.timing import (
    do_bench,
    last_level_cache_bytes,
    measure,
    time_call,
    time_callable,
)

QUICK = TimingOptions(time_s=0.02, min_samples=5)


def operator(name, overload=""):
    return next(op for op in _C.OperatorIndex().overloads(name) if op.overload == overload)


def counting_operator(name, schema, count):
    """Registers an operator that counts its calls and remembers what `count` makes of each."""
    library = torch.library.Library("opreplay_timing", "FRAGMENT")
    library.define(f"{name}{schema}")
    library.impl(name, count, "CPU")
    return operator(f"opreplay_timing::{name}"), library


def test_a_call_returns_the_operators_result():
    a = torch.arange(6.0).view(2, 3)
    (product,) = _C.Call(operator("aten::mm"), [a, a.t()]).run()
    assert product.tolist() == [[5, 14], [14, 50]]


def test_a_call_with_a_missing_argument_is_refused():
    with pytest.raises(ValueError, match="aten::mm takes 2 arguments, got 1"):
        _C.Call(operator("aten::mm"), [torch.ones(2, 2)])


def test_a_number_for_a_tensor_is_a_wrapped_number():
    half = torch.ones(3, dtype=torch.bfloat16)
    (total,) = _C.Call(operator("aten::add", "Tensor"), [half, 2.5, 1]).run()
    assert total.dtype == torch.bfloat16
    assert total.tolist() == [3.5] * 3


def test_every_kind_of_argument_reaches_the_operator():
    empty = operator("aten::empty", "memory_format")
    (made,) = _C.Call(
        empty,
        [[2, 3], torch.float16, torch.strided, torch.device("cpu"), False, torch.contiguous_format],
    ).run()
    assert (made.dtype, tuple(made.shape)) == (torch.float16, (2, 3))
    (joined,) = _C.Call(operator("aten::cat"), [[torch.ones(1), torch.zeros(2)], 0]).run()
    assert joined.tolist() == [1, 0, 0]
    (activated,) = _C.Call(operator("aten::gelu"), [torch.zeros(2), "tanh"]).run()
    assert activated.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("mode", "inference", "grad"),
    [("inference", True, False), ("no_grad", False, False), ("grad", False, True)],
)
def test_mode_is_what_autograd_sees(mode, inference, grad):
    seen = []

    def look(a):
        seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return a.clone()

    handle, library = counting_operator(f"look_{mode}", "(Tensor a) -> Tensor", look)
    _C.Call(handle, [torch.ones(1)]).run(mode)
    assert seen == [(inference, grad)]
    assert library is not None


def test_mode_must_be_one_of_three():
    with pytest.raises(ValueError, match="inference, no_grad or grad, got fast"):
        _C.Call(operator("aten::relu"), [torch.ones(1)]).run("fast")


def test_all_timed_calls_are_made():
    calls = []
    handle, library = counting_operator(
        "count", "(Tensor a) -> Tensor", lambda a: (calls.append(1), a.clone())[1]
    )
    plan = _C.TimingPlan()
    plan.limit_ns, plan.warmup_ns, plan.batch_ns, plan.relative_error = 20_000_000, 1, 1, 1e-9
    plan.max_samples = 7
    samples = _C.time_call(_C.Call(handle, [torch.ones(1)]), plan)
    assert samples.stop_reason == "max_samples"
    assert len(samples.ns) == 7
    # one first call, one that finds the batch, then the samples
    assert len(calls) == 2 + 7 * samples.batch
    assert library is not None


def test_a_sleep_twice_as_long_reads_about_twice_as_long():
    options = TimingOptions(time_s=0.3, min_samples=3)
    short = time_callable(lambda: time.sleep(0.004), options)
    long = time_callable(lambda: time.sleep(0.008), options)
    assert 1.4 < long.median / short.median < 2.8


def test_a_call_longer_than_the_limit_is_one_sample_of_one_call():
    calls = []

    def slow():
        calls.append(1)
        time.sleep(0.05)

    stat = time_callable(slow, TimingOptions(time_s=0.02))
    assert stat.samples == len(calls) == 1
    assert stat.stop_reason == "time_limit"


def test_statistics_are_those_of_the_samples():
    stat = time_call(
        _C.Call(operator("aten::relu"), [torch.ones(8)]),
        TimingOptions(time_s=0.05, raw=True, min_samples=20),
    )
    ordered = sorted(stat.raw)
    assert stat.samples == len(stat.raw)
    assert stat.min == ordered[0]
    assert ordered[0] <= stat.p5 <= stat.median <= stat.p95 <= ordered[-1]
    assert math.isclose(stat.mean, sum(stat.raw) / len(stat.raw))
    middle = len(ordered) // 2
    odd = len(ordered) % 2
    assert math.isclose(
        stat.median, ordered[middle] if odd else (ordered[middle - 1] + ordered[middle]) / 2
    )
    assert stat.route == "loop"


def test_samples_are_kept_only_when_asked_for():
    call = _C.Call(operator("aten::relu"), [torch.ones(8)])
    assert time_call(call, QUICK).raw is None


def test_an_empty_operator_is_at_the_floor_and_a_large_product_is_not():
    assert time_call(_C.empty_call(3), QUICK).at_floor
    large = torch.ones(128, 128)
    assert not time_call(_C.Call(operator("aten::mm"), [large, large]), QUICK).at_floor


@pytest.mark.parametrize("arguments", [0, 1, 10, 64])
def test_an_empty_call_takes_as_many_arguments_as_asked(arguments):
    assert len(_C.empty_call(arguments).arguments()) == arguments


def test_an_empty_call_has_a_limit():
    with pytest.raises(ValueError, match="0 to 64 arguments, got 65"):
        _C.empty_call(65)


def test_timer_step_is_positive():
    assert _C.timer_ns() > 0


def test_updated_arguments_start_every_sample_from_their_own_values():
    seen = []

    def add_one(a):
        seen.append(a[0].item())
        a.add_(1)

    handle, library = counting_operator("add_one_", "(Tensor(a!) a) -> ()", add_one)
    call = _C.Call(handle, [torch.zeros(4)])
    assert call.updates_arguments
    plan = _C.TimingPlan()
    plan.limit_ns, plan.warmup_ns, plan.max_samples, plan.batch_ns = 50_000_000, 1, 5, 1
    _C.time_call(call, plan)
    assert max(seen) < 64  # the most calls that a batch of an updating operator has
    assert seen.count(0) >= 5
    assert library is not None


def test_out_arguments_are_not_updated_arguments():
    a = torch.ones(2, 2)
    call = _C.Call(operator("aten::mm", "out"), [a, a, torch.empty(2, 2)])
    assert not call.updates_arguments
    assert call.updated_bytes == 0


def test_an_operator_that_changes_sizes_runs_any_number_of_times():
    call = _C.Call(operator("aten::unsqueeze_"), [torch.ones(3), 0])
    stat = time_call(call, QUICK)
    assert stat.samples >= 1
    assert call.arguments()[0].shape == (3,)


def test_copies_hold_the_values_in_storages_of_their_own():
    base = torch.arange(12.0).view(3, 4)
    call = _C.Call(operator("aten::mul", "Tensor"), [base.t(), base.t()])
    arena = torch.zeros(1 << 16, dtype=torch.uint8)
    copies = call.copies(3, arena)
    pointers = set()
    for copy in copies:
        left, right = copy.arguments()
        assert left.stride() == (1, 4)
        assert torch.equal(left, base.t())
        assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
        pointers.add(left.untyped_storage().data_ptr())
    assert len(pointers) == 3
    begin, end = arena.data_ptr(), arena.data_ptr() + arena.numel()
    assert all(begin <= p < end for p in pointers)


def test_copies_that_the_arena_cannot_hold_get_memory_of_their_own():
    call = _C.Call(operator("aten::relu"), [torch.ones(1000)])
    (copy,) = call.copies(1, torch.zeros(8, dtype=torch.uint8))
    assert torch.equal(copy.arguments()[0], torch.ones(1000))


def test_lists_and_none_survive_copying():
    call = _C.Call(operator("aten::cat"), [[torch.ones(2), torch.zeros(1)], 0])
    (copy,) = call.copies(1)
    (joined,) = copy.run()
    assert joined.tolist() == [1, 1, 0]
    call = _C.Call(operator("aten::linear"), [torch.ones(1, 2), torch.ones(3, 2), None])
    (copy,) = call.copies(1)
    assert copy.run()[0].tolist() == [[2, 2, 2]]


def test_bytes_count_a_shared_storage_once():
    base = torch.ones(10)
    call = _C.Call(operator("aten::mul", "Tensor"), [base[:5], base[5:]])
    assert call.argument_bytes == 40


def test_rotation_calls_every_copy_once_a_sample():
    seen = []
    handle, library = counting_operator(
        "touch", "(Tensor a) -> Tensor", lambda a: (seen.append(a.data_ptr()), a.clone())[1]
    )
    copies = _C.Call(handle, [torch.ones(16)]).copies(4)
    plan = _C.TimingPlan()
    plan.warmup_ns, plan.max_samples, plan.relative_error = 0, 3, 1e-9
    samples = _C.time_rotated(copies, plan, torch.ones(1 << 16, dtype=torch.uint8))
    assert samples.batch == 4
    assert len(seen) == 4 * len(samples.ns)
    assert set(seen[:4]) == set(seen[4:8])
    assert len(set(seen[:4])) == 4
    assert library is not None


def test_rotation_wants_a_call():
    with pytest.raises(ValueError, match="at least one call"):
        _C.time_rotated([], _C.TimingPlan(), None)


def test_measuring_gives_warm_and_cold_times_and_no_device_times_on_the_cpu():
    a = torch.ones(64, 64)
    inputs = Inputs((a,), (), None, a.nbytes)
    timing = measure(inputs, QUICK, call=_C.Call(operator("aten::relu"), [a]), mode="inference")
    assert timing.host_ns.median > 0
    assert timing.cold_us.median > 0
    assert (timing.hot_us, timing.latency_us, timing.launch_bound, timing.graph_gain) == (None,) * 4
    assert timing.gbps == pytest.approx(a.nbytes / timing.host_ns.median)
    assert set(timing.to_json()) == {
        *("host_ns", "hot_us", "cold_us", "latency_us", "launch_bound", "graph_gain", "gbps")
    }


def test_a_large_updated_argument_is_said_not_to_be_restored():
    large = torch.zeros((_C.RESTORE_LIMIT // 4) + 1)
    call = _C.Call(operator("aten::relu_"), [large])
    timing = measure(Inputs((large,), (), None, large.nbytes), QUICK, call=call, mode="inference")
    assert any("not restored" in note for note in timing.notes)


def test_a_call_longer_than_the_limit_has_no_cold_time_and_says_so():
    handle, library = counting_operator(
        "doze", "(Tensor a) -> Tensor", lambda a: (time.sleep(0.05), a.clone())[1]
    )
    a = torch.ones(1)
    timing = measure(Inputs((a,), (), None, 4), QUICK, call=_C.Call(handle, [a]), mode="inference")
    assert timing.cold_us is None
    assert any("longer than the time limit" in note for note in timing.notes)
    assert library is not None


def test_an_unknown_cache_size_is_said(monkeypatch):
    monkeypatch.setattr("opreplay.timing.last_level_cache_bytes", lambda: None)
    a = torch.ones(64, 64)
    inputs = Inputs((a,), (), None, a.nbytes)
    timing = measure(inputs, QUICK, call=_C.Call(operator("aten::relu"), [a]), mode="inference")
    (note,) = timing.notes
    assert note.startswith("the system does not tell the size of its caches: 32 MiB were taken")


def test_a_python_callable_is_timed_by_the_python_route():
    timing = measure(Inputs((), (), None, 0), QUICK, call=lambda: sum(range(10)), mode="no_grad")
    assert timing.host_ns.route == "python"
    assert timing.cold_us is None


def test_what_an_operator_raises_comes_through():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        time_call(_C.Call(operator("aten::mm"), [torch.ones(2, 3), torch.ones(2, 3)]), QUICK)
    with pytest.raises(ZeroDivisionError):
        time_callable(lambda: 1 / 0, QUICK)


def test_do_bench_returns_milliseconds():
    assert 1.0 < do_bench(lambda: time.sleep(0.001), warmup=1, rep=10) < 20


def test_do_bench_gives_what_is_asked_for():
    calls = []
    every = do_bench(lambda: calls.append(1), warmup=0, rep=1, return_mode="all")
    assert len(every) > 1
    low, high = do_bench(lambda: None, warmup=0, rep=1, quantiles=[0.2, 0.8])
    assert low <= high
    assert isinstance(do_bench(lambda: None, warmup=0, rep=1, quantiles=[0.5]), float)
    assert do_bench(lambda: None, warmup=0, rep=1, return_mode="min") > 0


def test_do_bench_drops_gradients_before_every_call():
    weight = torch.ones(2, requires_grad=True)
    seen = []

    def step():
        seen.append(weight.grad)
        weight.sum().backward()

    do_bench(step, warmup=0, rep=1, grad_to_none=[weight])
    assert seen
    assert all(grad is None for grad in seen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"return_mode": "fastest"}, "return_mode must be one of"), ({"rep": 0}, "milliseconds")],
)
def test_do_bench_refuses_what_it_cannot_do(arguments, message):
    with pytest.raises(ValueError, match=message):
        do_bench(lambda: None, **arguments)


@pytest.mark.parametrize(
    "options", [{"time_s": 0}, {"time_s": math.inf}, {"relative_error": 1}, {"min_samples": 1}]
)
def test_options_refuse_values_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TimingOptions(**options)


def test_last_level_cache_is_at_least_that_of_any_cpu_or_unknown():
    size = last_level_cache_bytes()
    assert size is None or size >= 64 << 10
