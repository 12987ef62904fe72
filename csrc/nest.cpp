// SPDX-License-Identifier: MIT
#include "nest.h"

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

}  // namespace opreplay
