"""What the timing loop adds to a call, and what resolving costs, side by side in one run.

The bare loop is written out here by hand and compiled on the spot: a stack filled, `callBoxed`, the
stack emptied. Ours is `opreplay.time_call`; Python calls the same overload as `torch.ops` does.
Each figure is the median over interleaved rounds; the ratio is taken within a round.

    python benchmarks/call_overhead.py [TRACE]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch.utils.cpp_extension import load_inline

from opreplay import _C
from opreplay.resolve import Resolver
from opreplay.trace import read_trace

ROUNDS = 15
CALLS = 200_000

BARE_LOOP = r"""
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>
#include <c10/core/InferenceMode.h>
#include <chrono>

double bare_loop(const std::string& name, const std::string& overload, py::list values, int64_t n) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::vector<c10::IValue> arguments;
  for (const auto& value : values) {
    arguments.push_back(torch::jit::toIValue(value, c10::TensorType::get()));
  }
  py::gil_scoped_release release;
  c10::InferenceMode guard;
  torch::jit::Stack stack;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < n; ++i) {
    stack.assign(arguments.begin(), arguments.end());
    op.callBoxed(&stack);
    stack.clear();
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(n);
}
"""


def loop_overhead(bare, arguments: int) -> None:
    """Prints one line: an empty operator with this many tensor arguments."""
    call = _C.empty_call(arguments)
    values = call.arguments()
    overload = f"with_{arguments}"
    packet = getattr(torch.ops.opreplay.empty_call, overload)
    plan = _C.TimingPlan()
    plan.batch_ns, plan.limit_ns, plan.relative_error = 2_000_000, 30_000_000, 0.005
    by_hand, ours, python, ratios = [], [], [], []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            by_hand.append(bare("opreplay::empty_call", overload, values, CALLS))
            ours.append(statistics.median(_C.time_call(call, plan).ns))
            ratios.append(ours[-1] / by_hand[-1])
            samples = _C.time_python(lambda: packet(*values), plan)
            python.append(statistics.median(samples.ns))
    print(
        f"{arguments:9}  {statistics.median(by_hand):9.1f}  {statistics.median(ours):9.1f}  "
        f"{statistics.median(ratios):10.3f}  {statistics.median(python):9.1f}"
    )


def resolve_cost(path: str) -> None:
    """Prints one line: all signatures of a trace resolved, each once."""
    trace = read_trace(path)
    groups = trace.groups()
    calls = sum(group.count for group in groups)
    resolver = Resolver()
    begin = time.perf_counter()
    for group in groups:
        resolver.resolve(group.call)
    took_us = (time.perf_counter() - begin) * 1e6
    print(
        f"resolving {path}: {calls} events, {len(groups)} signatures, "
        f"{took_us / calls:.2f} us per event, {took_us / len(groups):.1f} us per signature"
    )


def main(paths: list[str]) -> None:
    bare = load_inline(
        "opreplay_bare_loop", BARE_LOOP, functions=["bare_loop"], extra_cflags=["-O3", "-DNDEBUG"]
    )
    print("empty operator, ns per call, medians of interleaved rounds")
    print("arguments  bare loop  time_call  ours/bare      Python")
    for arguments in (1, 10, 18):
        loop_overhead(bare.bare_loop, arguments)
    for path in paths:
        resolve_cost(path)


if __name__ == "__main__":
    main(sys.argv[1:])
