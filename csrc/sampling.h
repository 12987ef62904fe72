// SPDX-License-Identifier: MIT
//
// When to stop sampling: the same rules for loops on the CPU and for windows on a device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "opreplay/timing.h"

namespace opreplay {

/// Half the width of the 95 % confidence interval of the median, relative to the median, from the
/// order statistics (no distribution assumed): ranks n/2 -+ 0.98 sqrt(n).
inline double relative_median_error(std::vector<double> samples) {
  const auto n = static_cast<double>(samples.size());
  std::sort(samples.begin(), samples.end());
  const double reach = 0.98 * std::sqrt(n);
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<std::size_t>(std::min(n - 1, std::ceil(n / 2 + reach)));
  return (samples[high] - samples[low]) / 2 / samples[samples.size() / 2];
}

/// Samples as they come, until the plan is met.
class SampleSeries {
 public:
  explicit SampleSeries(const TimingPlan& plan)
      : plan_(plan), next_check_(static_cast<std::size_t>(plan.min_samples)) {
    samples_.ns.reserve(static_cast<std::size_t>(plan.max_samples));
  }

  /// Takes the time of one call; refuses what no call can have taken.
  void add(double ns) {
    if (ns > 0 && std::isfinite(ns)) {
      samples_.ns.push_back(ns);
    } else {
      refuse();
    }
  }

  /// Counts a sample that is not to be used.
  void refuse() { ++samples_.discarded; }

  /// Says whether to stop, and keeps the reason.
  [[nodiscard]] bool finished(int64_t elapsed_ns) {
    if (samples_.ns.size() >= next_check_) {
      next_check_ = samples_.ns.size() + samples_.ns.size() / 4 + 1;  // checking costs a sort
      if (relative_median_error(samples_.ns) <= plan_.relative_error) {
        samples_.stop_reason = "relative_error";
        return true;
      }
    }
    if (static_cast<int64_t>(samples_.ns.size()) + samples_.discarded >= plan_.max_samples) {
      samples_.stop_reason = "max_samples";
      return true;
    }
    if (elapsed_ns >= plan_.limit_ns) {
      samples_.stop_reason = "time_limit";
      return true;
    }
    return false;
  }

  /// Hands out what was taken, with `batch` calls in each sample.
  [[nodiscard]] Samples take(int64_t batch) {
    samples_.batch = batch;
    return std::move(samples_);
  }

 private:
  const TimingPlan& plan_;
  std::size_t next_check_;
  Samples samples_;
};

}  // namespace opreplay
