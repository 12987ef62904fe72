// SPDX-License-Identifier: MIT
#include "opreplay/timing.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "sampling.h"

namespace opreplay {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Reads a buffer from every thread of the pool, so that each core's own caches are emptied too.
void read_through(const at::Tensor& buffer) {
  constexpr int64_t kCacheLine = 64;
  const auto* bytes = static_cast<const uint8_t*>(buffer.const_data_ptr());
  std::atomic<uint64_t> sink{0};
  at::parallel_for(0, buffer.numel() / kCacheLine, 1 << 12, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t line = begin; line < end; ++line) sum += bytes[line * kCacheLine];
    sink.fetch_add(sum, std::memory_order_relaxed);
  });
}

/// The number of calls that fill the plan's batch time, found by doubling; runs the warm-up.
int64_t warm_up(const std::function<void(int64_t)>& issue,
                const std::function<void()>& before_sample,
                const TimingPlan& plan,
                int64_t start) {
  int64_t batch = 1;
  while (true) {
    before_sample();
    const int64_t begin = now_ns();
    issue(batch);
    const int64_t end = now_ns();
    const bool filled = end - begin >= plan.batch_ns || batch >= plan.max_batch;
    if (filled && end - start >= plan.warmup_ns) return batch;
    if (end - start >= plan.limit_ns / 2) return batch;
    if (!filled) batch = std::min(batch * 2, plan.max_batch);
  }
}

void empty_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

std::string empty_overload(int64_t arguments) { return "with_" + std::to_string(arguments); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(opreplay, library) {
  for (int64_t count = 0; count <= kMaxEmptyArguments; ++count) {
    std::string schema = "empty_call." + empty_overload(count) + "(";
    for (int64_t i = 0; i < count; ++i) {
      schema += (i == 0 ? "Tensor a" : ", Tensor a") + std::to_string(i);
    }
    schema += ") -> ()";
    library.def(schema.c_str(), torch::CppFunction::makeFromBoxedFunction<&empty_kernel>());
  }
}

Samples measure(const std::function<void(int64_t)>& issue,
                const std::function<void()>& before_sample,
                const TimingPlan& plan) {
  const int64_t start = now_ns();
  int64_t batch = 1;
  if (plan.warmup_ns > 0) {
    before_sample();
    const int64_t begin = now_ns();
    issue(1);  // the first call of an operator may compile, allocate or choose
    const int64_t first = now_ns() - begin;
    if (first >= plan.limit_ns) {
      Samples one;
      one.ns.push_back(static_cast<double>(first));
      one.batch = 1;
      one.stop_reason = "time_limit";
      return one;
    }
    batch = warm_up(issue, before_sample, plan, start);
  }
  SampleSeries series(plan);
  while (true) {
    before_sample();
    if (plan.on_before_sample) plan.on_before_sample();
    const int64_t begin = now_ns();
    issue(batch);
    const int64_t end = now_ns();
    if (plan.on_after_sample) plan.on_after_sample();
    series.add(static_cast<double>(end - begin) / static_cast<double>(batch));
    if (series.finished(end - start)) return series.take(batch);
  }
}

Samples time_call(Call& call, const TimingPlan& plan) {
  if (!call.updates_arguments()) {
    const GradModeGuard guard(plan.mode);
    return measure([&](int64_t n) { call.issue(n); }, [] {}, plan);
  }
  // Restored between samples, values drift over one batch only: a product of 64 factors below one
  // neither reaches the denormals of float nor, where an operator adds a dimension, too many.
  constexpr int64_t kUpdatingBatch = 64;
  const bool restore = call.updated_bytes() <= kRestoreLimit;
  const auto pristine = restore ? call.updated_values() : std::vector<at::Tensor>();
  TimingPlan bounded = plan;
  bounded.max_batch = std::min(plan.max_batch, kUpdatingBatch);
  std::vector<Call> aliases;
  const auto before_sample = [&] {
    if (restore) call.restore(pristine);
    if (!call.changes_metadata()) return;
    aliases.clear();  // each call of a batch needs tensors whose sizes no call has changed yet
    for (int64_t i = 0; i < bounded.max_batch; ++i) aliases.push_back(call.alias());
  };
  const auto issue = [&](int64_t n) {
    if (!call.changes_metadata()) return call.issue(n);
    for (int64_t i = 0; i < n; ++i) aliases[static_cast<std::size_t>(i)].issue(1);
  };
  const GradModeGuard guard(plan.mode);
  return measure(issue, before_sample, bounded);
}

Samples time_rotated(std::vector<Call>& calls, const TimingPlan& plan, const at::Tensor& evict) {
  TORCH_CHECK_VALUE(!calls.empty(), "time_rotated needs at least one call, got none");
  const bool restore =
      calls.front().updates_arguments() && calls.front().updated_bytes() <= kRestoreLimit;
  const bool renew = calls.front().changes_metadata();
  const auto pristine = restore ? calls.front().updated_values() : std::vector<at::Tensor>();
  const std::vector<Call> originals = renew ? calls : std::vector<Call>();
  std::vector<Call> turn = calls;
  const auto before_sample = [&] {
    for (std::size_t i = 0; i < turn.size(); ++i) {
      if (renew) turn[i] = originals[i].alias();
      if (restore) turn[i].restore(pristine);
    }
    if (evict.defined()) read_through(evict);
  };
  const auto issue = [&](int64_t) {
    for (Call& call : turn) call.issue(1);
  };
  TimingPlan each_once = plan;
  each_once.warmup_ns = 0;  // warming up is what must not happen
  const GradModeGuard guard(plan.mode);
  Samples result = measure(issue, before_sample, each_once);
  result.batch = static_cast<int64_t>(calls.size());
  for (double& ns : result.ns) ns /= static_cast<double>(calls.size());
  return result;
}

Call empty_call(int64_t arguments) {
  TORCH_CHECK_VALUE(arguments >= 0 && arguments <= kMaxEmptyArguments,
                    "an empty call takes 0 to ",
                    kMaxEmptyArguments,
                    " arguments, got ",
                    arguments);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("opreplay::empty_call",
                                                                 empty_overload(arguments).c_str());
  std::vector<c10::IValue> values;
  for (int64_t i = 0; i < arguments; ++i) values.emplace_back(at::empty({1}));
  return Call(op, std::move(values));
}

double timer_ns() {
  constexpr int kReadings = 1000;
  int64_t smallest = INT64_MAX;
  for (int i = 0; i < kReadings; ++i) {
    const int64_t begin = now_ns();
    int64_t end = now_ns();
    while (end == begin) end = now_ns();
    smallest = std::min(smallest, end - begin);
  }
  return static_cast<double>(smallest);
}

}  // namespace opreplay
