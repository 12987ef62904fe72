// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace opreplay {

/// Row that stands for none.
constexpr int64_t kNoRow = -1;

/// The tree of intervals on threads: which runs inside which. A row's subtree is the rows after it.
struct NestedIntervals {
  /// Row of the innermost enclosing interval, or `kNoRow`.
  std::vector<int64_t> parent;
  /// Number of enclosing intervals.
  std::vector<int64_t> depth;
  /// Number of rows in the subtree, the interval itself included.
  std::vector<int64_t> size;
};

/// Nests intervals that are sorted by thread and start, an enclosing one before those inside.
///
/// One lies inside another of its thread that has not ended when it starts, and that it outlasts by
/// at most `tolerance`.
[[nodiscard]] NestedIntervals nest(std::span<const int64_t> thread,
                                   std::span<const double> start,
                                   std::span<const double> end,
                                   double tolerance);

/// Nested intervals, as `nest` takes and returns them.
struct IntervalTree {
  std::span<const int64_t> thread;
  std::span<const double> start, end;
  std::span<const int64_t> parent;
};

/// Innermost interval around each span of time on a thread, or `kNoRow`.
///
/// It has started at `start` and doesn't end before `end`. Without threads (`thread` is empty)
/// those of every thread count, and of these the one that started last.
[[nodiscard]] std::vector<int64_t> innermost(const IntervalTree& tree,
                                             std::span<const int64_t> thread,
                                             std::span<const double> start,
                                             std::span<const double> end);

}  // namespace opreplay
