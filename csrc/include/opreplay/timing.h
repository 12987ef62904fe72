// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/export.h"

namespace opreplay {

/// How long and how exactly to measure.
struct TimingPlan {
  /// Calls run for this long before the first sample [nanoseconds], at least two of them; none run,
  /// and a sample is one call, where this is zero.
  int64_t warmup_ns = 2'000'000;
  /// Warm-up and samples together end after this time [nanoseconds]; at least one sample is taken.
  /// Where the very first call takes longer, it is the one sample.
  int64_t limit_ns = 300'000'000;
  /// Samples are taken until the 95 % confidence interval of their median is at most this wide on
  /// either side, relative to the median.
  double relative_error = 0.01;
  /// No stop for the relative error before this many samples.
  int64_t min_samples = 20;
  /// No more samples than this.
  int64_t max_samples = 2000;
  /// A sample holds as many calls as take this long [nanoseconds], so that the timer's step and
  /// cost stay out of the result.
  int64_t batch_ns = 20'000;
  /// At most this many calls in a sample.
  int64_t max_batch = 100'000;
  GradMode mode = GradMode::kInference;
  /// Called right before and right after the timed region of each sample, outside of it and not in
  /// the warm-up: where a harness starts and stops its counters. On a device the region holds the
  /// queueing of the work and the wait for it.
  std::function<void()> on_before_sample;
  std::function<void()> on_after_sample;
};

/// Times of one measurement.
struct Samples {
  /// Time of one call in each sample [nanoseconds], in the order taken.
  std::vector<double> ns;
  /// Calls per sample.
  int64_t batch = 0;
  /// Samples refused: a time that was zero or negative, on a device also a clock under 75 % of the
  /// steady one.
  int64_t discarded = 0;
  /// "relative_error", "time_limit" or "max_samples".
  std::string stop_reason;
  /// "loop"; on a device also "graph" or "stream".
  std::string route = "loop";
  /// What work that does nothing takes on this route [nanoseconds]; zero where that is measured
  /// apart (empty_call).
  double floor_ns = 0;
};

/// Times `issue(n)`, which must make n calls. `before_sample` runs outside the window.
OPREPLAY_API Samples measure(const std::function<void(int64_t)>& issue,
                             const std::function<void()>& before_sample,
                             const TimingPlan& plan);

/// Times a call with its inputs warm, from a tight loop on this thread. Arguments that the operator
/// updates are restored between samples where they are small (see kRestoreLimit).
OPREPLAY_API Samples time_call(Call& call, const TimingPlan& plan);

/// Times calls in turn, each once per sample: the inputs of each are out of cache when its turn
/// comes, provided that all copies together exceed the cache. Where they do not, `evict` (a CPU
/// buffer of at least that size) is read before each sample, outside the window.
OPREPLAY_API Samples time_rotated(std::vector<Call>& calls,
                                  const TimingPlan& plan,
                                  const at::Tensor& evict);

/// Updated arguments of more bytes than this are not restored between samples.
inline constexpr int64_t kRestoreLimit = 64 << 20;

/// A call of an empty operator with this many tensor arguments: what it costs is the floor under
/// any measurement of a call with as many. Throws c10::ValueError above kMaxEmptyArguments.
OPREPLAY_API Call empty_call(int64_t arguments);
inline constexpr int64_t kMaxEmptyArguments = 64;

/// Smallest time that two successive readings of the clock are apart [nanoseconds].
[[nodiscard]] OPREPLAY_API double timer_ns();

}  // namespace opreplay
