// SPDX-License-Identifier: MIT
#include "nest.h"

#include <algorithm>
#include <cstddef>

namespace opreplay {

NestedIntervals nest(std::span<const int64_t> thread,
                     std::span<const double> start,
                     std::span<const double> end,
                     double tolerance) {
  const size_t count = thread.size();
  NestedIntervals found{std::vector<int64_t>(count, kNoRow),
                        std::vector<int64_t>(count, 0),
                        std::vector<int64_t>(count, 1)};
  std::vector<size_t> open;
  const auto close = [&] {
    const size_t closed = open.back();
    open.pop_back();
    if (!open.empty()) found.size[open.back()] += found.size[closed];
  };
  const auto encloses = [&](size_t outer, size_t row) {
    return thread[outer] == thread[row] && start[row] < end[outer] &&
           end[row] <= end[outer] + tolerance;
  };
  for (size_t row = 0; row < count; ++row) {
    while (!open.empty() && !encloses(open.back(), row)) close();
    if (!open.empty()) {
      found.parent[row] = static_cast<int64_t>(open.back());
      found.depth[row] = static_cast<int64_t>(open.size());
    }
    open.push_back(row);
  }
  while (!open.empty()) close();
  return found;
}

std::vector<int64_t> innermost(const IntervalTree& tree,
                               std::span<const int64_t> thread,
                               std::span<const double> start,
                               std::span<const double> end) {
  /// Rows of a thread.
  struct Rows {
    int64_t thread;
    size_t first, last;
  };
  std::vector<Rows> threads;
  for (size_t row = 0; row < tree.thread.size(); ++row) {
    if (row == 0 || tree.thread[row] != tree.thread[row - 1]) {
      threads.push_back({tree.thread[row], row, row});
    }
    ++threads.back().last;
  }
  const auto around = [&](const Rows& rows, size_t asked) {
    const auto first = tree.start.begin();
    const auto later = std::upper_bound(first + static_cast<ptrdiff_t>(rows.first),
                                        first + static_cast<ptrdiff_t>(rows.last),
                                        start[asked]);
    auto row = static_cast<int64_t>(later - first) - 1;
    if (row < static_cast<int64_t>(rows.first)) return kNoRow;
    while (row != kNoRow && tree.end[static_cast<size_t>(row)] < end[asked]) {
      row = tree.parent[static_cast<size_t>(row)];
    }
    return row;
  };
  const auto start_of = [&](int64_t row) { return tree.start[static_cast<size_t>(row)]; };
  std::vector<int64_t> found(start.size(), kNoRow);
  for (size_t asked = 0; asked < start.size(); ++asked) {
    int64_t& best = found[asked];
    if (!thread.empty()) {
      const auto own = std::ranges::lower_bound(threads, thread[asked], {}, &Rows::thread);
      if (own != threads.end() && own->thread == thread[asked]) best = around(*own, asked);
      continue;
    }
    for (const Rows& rows : threads) {
      const int64_t row = around(rows, asked);
      if (row != kNoRow && (best == kNoRow || start_of(row) > start_of(best))) best = row;
    }
  }
  return found;
}

}  // namespace opreplay
