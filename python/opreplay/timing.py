"""Times calls: inputs come in, medians with their spread, floor and stop reason go out."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from opreplay import _C
from opreplay.stat import Stat, Timing, TimingOptions

if TYPE_CHECKING:
    from opreplay.inputs import Inputs

__all__ = [
    "Stat",
    "Timing",
    "TimingOptions",
    "do_bench",
    "kernel_times",
    "last_level_cache_bytes",
    "measure",
    "measure_unit",
    "profile_once",
    "sum_kernels",
    "time_block",
    "time_call",
    "time_callable",
]

_MAX_RAW = 1000
_MAX_ROTATED = 32
_HOT_SHARE = 0.93
_COLD_PASSES = 5
_UNKNOWN_CACHE = 32 << 20
_DEVICE_WARMUP_MS = 200.0
_ONE_CALL = "one call for a profiler from outside: nothing was timed"


def measure(
    inputs: Inputs,
    options: TimingOptions,
    *,
    call: _C.Call | Callable[[], object],
    mode: str,
    device: str = "cpu",
) -> Timing:
    """Times a prepared call, warm and (unless it is a Python callable) cold.

    Args:
        inputs: What `call` was made of.
        options: Time limit and exactness.
        call: A boxed call, or a callable that makes one call from Python.
        mode: "inference", "no_grad" or "grad".
        device: Where the call runs.
    """
    if not isinstance(call, _C.Call):
        host = time_callable(call, options, mode=mode)
        return Timing(host, None, None, None, None, None, _gbps(inputs.bytes, host.median))
    if _C.has_device_api(device):
        return measure_unit([call], options, mode=mode, device=device)
    host = time_call(call, options, mode=mode)
    notes = []
    if call.updates_arguments and call.updated_bytes > _C.RESTORE_LIMIT:
        notes.append(
            f"written arguments ({call.updated_bytes / 2**20:.0f} MiB) were not restored "
            "between samples"
        )
    cold = None
    if options.cold and host.median > options.time_s * 1e9:
        notes.append("one call takes longer than the time limit, its cold time was not taken")
    elif options.cold:
        if last_level_cache_bytes() is None:
            notes.append(
                f"the system does not tell the size of its caches: {_UNKNOWN_CACHE >> 20} MiB were "
                "taken for cold times"
            )
        cold = _time_cold(call, options, mode, warm_ns=host.median)
    return Timing(
        host, None, cold, None, None, None, _gbps(call.argument_bytes, host.median), tuple(notes)
    )


def measure_unit(
    calls: Sequence[_C.Call], options: TimingOptions, *, mode: str, device: str
) -> Timing:
    """Times calls that run in their order as one unit, on a device that has a back end.

    Raises:
        NotImplementedError: The device has none.
    """
    plan = _plan(options, mode)
    plan.limit_ns = int(options.time_s * 1e9)
    plan.warmup_ns = int((options.warmup_ms or _DEVICE_WARMUP_MS) * 1e6)
    times = _device_timer(device).time(
        calls, plan, options.cold_arguments if options.cold else "off"
    )
    arguments = sum(len(call.arguments()) for call in calls)
    host = _stat(times.host, options, floor=_floor(arguments), route="loop")
    hot, cold, latency = (
        None
        if found is None
        else _stat(found, options, floor=found.floor_ns / 1000, route=found.route, scale=1e-3)
        for found in (times.hot, times.cold, times.latency)
    )
    if hot is None:
        return Timing(host, None, cold, latency, None, None, None, tuple(times.notes))
    host_us = host.median / 1000
    moved = sum(call.argument_bytes for call in calls)
    return Timing(
        host,
        hot,
        cold,
        latency,
        launch_bound=host_us > hot.median,
        graph_gain=max(host_us, hot.median) / hot.median,
        gbps=_gbps(moved, hot.median * 1000),
        notes=tuple(times.notes),
    )


def profile_once(call: _C.Call, *, name: str, mode: str, device: str) -> Timing:
    """Makes one warmed call inside a range, with the profiler of the device's vendor collecting.

    The range is of NVTX or ROCTX. Nothing else runs inside it: ncu, nsys and rocprof see one call.
    Its `host_ns` is the one call's, under whatever the profiler adds.
    """
    call.run(mode)
    plan = _C.TimingPlan()
    plan.mode = mode
    plan.limit_ns = plan.warmup_ns = 1  # the first call is the only sample
    kind = torch.device(device).type
    if kind != "cpu":
        torch.accelerator.synchronize(device)
    with contextlib.ExitStack() as around:
        if kind == "cuda":  # no torch.accelerator interface has ranges
            around.enter_context(torch.cuda.profiler.profile())
            around.enter_context(torch.cuda.nvtx.range(name))
        samples = _C.time_call(call, plan)
        if kind != "cpu":
            torch.accelerator.synchronize(device)
    once = _stat(samples, TimingOptions(), floor=_floor(len(call.arguments())), route="loop")
    return Timing(once, None, None, None, None, None, None, (_ONE_CALL,))


def kernel_times(call: _C.Call, *, mode: str) -> dict[str, tuple[int, float]]:
    """Makes one call under torch's profiler; returns number and time of its kernels, by name.

    Times are sums [microseconds].
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call.run(mode)
        torch.accelerator.synchronize()
    return sum_kernels(profiler.events())


def sum_kernels(events: Iterable[Any]) -> dict[str, tuple[int, float]]:
    """Counts a profile's kernels and adds up their time [microseconds], by name, longest first."""
    sums: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.device_type.name != "CPU":
            count, time = sums.get(event.name, (0, 0.0))
            sums[event.name] = (count + 1, time + event.device_time_total)
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def time_call(
    call: _C.Call, options: TimingOptions | None = None, *, mode: str = "inference"
) -> Stat:
    """Times a boxed call with its inputs warm, from a C++ loop without the GIL [nanoseconds]."""
    options = options or TimingOptions()
    samples = _C.time_call(call, _plan(options, mode))
    return _stat(samples, options, floor=_floor(len(call.arguments())), route="loop")


def time_callable(
    fn: Callable[[], object], options: TimingOptions | None = None, *, mode: str = "inference"
) -> Stat:
    """Times a Python callable on the same engine, call cost of Python included [nanoseconds]."""
    options = options or TimingOptions()
    samples = _C.time_python(fn, _plan(options, mode))
    return _stat(samples, options, floor=_python_floor(), route="python")


def time_block(
    fn: Callable[[], object], *, warmup: int, steps: int, wait: Callable[[], None] | None
) -> float:
    """Times calls in a row as one block; returns the mean of a call [nanoseconds].

    Args:
        fn: What to time.
        warmup: Calls before the clock starts.
        steps: Calls in the block.
        wait: Called before the clock starts and at the end of the block; waits for the device.
    """
    if not (warmup >= 0 and steps > 0):
        raise ValueError(f"warmup and steps are counts, got {warmup = }, {steps = }")

    def block() -> None:
        for _ in range(steps):
            fn()
        if wait is not None:
            wait()

    for _ in range(warmup):
        fn()
    if wait is not None:
        wait()
    plan = _C.TimingPlan()
    plan.mode = "grad" if torch.is_grad_enabled() else "no_grad"
    plan.warmup_ns = 0
    plan.max_batch = plan.min_samples = plan.max_samples = 1
    return float(_C.time_python(block, plan).ns[0]) / steps


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: Literal["min", "max", "mean", "median", "all"] = "median",
) -> float | list[float]:
    """Times a callable with the signature of `triton.testing.do_bench`, in milliseconds.

    Args:
        fn: What to time.
        warmup: Time of the warm-up [milliseconds].
        rep: Time of the samples [milliseconds].
        grad_to_none: Tensors whose gradient is dropped before every call.
        quantiles: Quantiles to return instead of one figure.
        return_mode: Which figure to return; "all" returns every sample. The default is the median,
            where triton's is the mean.
    """
    modes: dict[str, Callable[..., Any]] = {
        "min": np.min,
        "max": np.max,
        "mean": np.mean,
        "median": np.median,
    }
    if return_mode not in (*modes, "all"):
        raise ValueError(f"return_mode must be one of {[*modes, 'all']}, got {return_mode!r}")
    if not (warmup >= 0 and rep > 0):
        raise ValueError(f"warmup and rep are milliseconds, got {warmup = }, {rep = }")

    def step() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None
        fn()

    plan = _C.TimingPlan()
    plan.mode = "grad" if torch.is_grad_enabled() else "no_grad"
    plan.warmup_ns = max(1, int(warmup * 1e6))
    plan.limit_ns = int((warmup + rep) * 1e6)
    plan.max_batch = 1
    plan.relative_error = 1e-9  # the time given is used in full
    plan.max_samples = 1_000_000
    times_ms = np.array(_C.time_python(step, plan).ns) / 1e6
    if quantiles is not None:
        found = [float(q) for q in np.quantile(times_ms, quantiles)]
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return [float(t) for t in times_ms]
    return float(modes[return_mode](times_ms))


@functools.cache
def last_level_cache_bytes() -> int | None:
    """Size of the largest cache of this CPU; None where the system does not say."""
    sizes = []
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KM])", size.read_text().strip())
        if match:
            sizes.append(int(match[1]) << (10 if match[2] == "K" else 20))
    if not sizes and "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names:
        sizes.append(os.sysconf("SC_LEVEL3_CACHE_SIZE"))
    return max(sizes, default=0) or None


def _plan(options: TimingOptions, mode: str) -> _C.TimingPlan:
    plan = _C.TimingPlan()
    plan.mode = mode
    plan.limit_ns = int(options.time_s * 1e9 * (_HOT_SHARE if options.cold else 1.0))
    if options.warmup_ms is None:
        plan.warmup_ns = min(plan.warmup_ns, plan.limit_ns // 4)
    else:
        plan.warmup_ns = int(options.warmup_ms * 1e6)
        plan.limit_ns += plan.warmup_ns
    plan.relative_error = options.relative_error
    plan.min_samples = options.min_samples
    return plan


def _time_cold(call: _C.Call, options: TimingOptions, mode: str, *, warm_ns: float) -> Stat:
    """Times copies of a call in turn, after reading twice the last-level cache from elsewhere.

    Reading empties the caches between the passes, the copies keep a pass from warming itself, and
    a pass over many copies keeps the timer out of the result.
    """
    arena, evict = _cold_buffers()
    plan = _C.TimingPlan()
    plan.mode = mode
    plan.warmup_ns = 0  # warm is what the inputs must not be
    plan.limit_ns = int(options.time_s * 1e9 * (1 - _HOT_SHARE))
    plan.relative_error = max(0.1, options.relative_error)  # a pass costs reading the caches full
    plan.min_samples = _COLD_PASSES
    fit = arena.numel() // max(1, call.argument_bytes)
    in_time = int(plan.limit_ns / _COLD_PASSES / max(1.0, warm_ns))
    copies = min(_MAX_ROTATED, fit, in_time)
    calls = call.copies(copies, arena) if copies > 1 else [call]
    samples = _C.time_rotated(calls, plan, evict)
    floor = _floor(len(call.arguments()))
    return _stat(samples, options, floor=floor / 1000, route="loop", scale=1e-3)


@functools.cache
def _cold_buffers() -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the copies, and what is read to empty the caches; kept: page faults cost more."""
    size = 2 * (last_level_cache_bytes() or _UNKNOWN_CACHE)
    return torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)


@functools.cache
def _device_timer(device: str) -> _C.DeviceTimer:
    """One for each device: it keeps streams, events, the flush buffer and the floors."""
    return _C.DeviceTimer(device)


@functools.cache
def _floor(arguments: int) -> float:
    """What an empty operator with as many arguments takes [nanoseconds]."""
    plan = _C.TimingPlan()
    plan.limit_ns = 20_000_000
    samples = _C.time_call(_C.empty_call(min(arguments, _C.MAX_EMPTY_ARGUMENTS)), plan)
    return float(np.median(samples.ns))


@functools.cache
def _python_floor() -> float:
    """What calling an empty Python function takes [nanoseconds]."""
    plan = _C.TimingPlan()
    plan.limit_ns = 20_000_000
    return float(np.median(_C.time_python(lambda: None, plan).ns))


def _stat(
    samples: _C.Samples,
    options: TimingOptions,
    *,
    floor: float,
    route: Literal["loop", "graph", "stream", "python"],
    scale: float = 1.0,
) -> Stat:
    times = np.array(samples.ns) * scale
    if times.size == 0:
        raise RuntimeError(f"no sample took a positive time; {samples.discarded} were discarded")
    p5, p25, median, p75, p95 = np.quantile(times, (0.05, 0.25, 0.5, 0.75, 0.95))
    return Stat(
        median=float(median),
        mean=float(times.mean()),
        min=float(times.min()),
        p5=float(p5),
        p95=float(p95),
        iqr=float(p75 - p25),
        samples=int(times.size),
        discarded=samples.discarded,
        stop_reason=samples.stop_reason,
        floor=floor,
        at_floor=bool(median < 3 * floor),
        route=route,
        raw=[float(t) for t in times[:_MAX_RAW]] if options.raw else None,
    )


def _gbps(argument_bytes: int, ns: float) -> float | None:
    return argument_bytes / ns if ns > 0 else None
