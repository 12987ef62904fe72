// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>

namespace opreplay::kernels {

/// Works on the elements [begin, end).
using RangeBody = std::function<void(int64_t begin, int64_t end)>;

/// Splits [begin, end) into ranges of at least `grain` elements and runs them, in any order and on
/// any threads. Passed in, so that the CPU twins bring no thread pool of their own.
using ParallelFor =
    std::function<void(int64_t begin, int64_t end, int64_t grain, const RangeBody& body)>;

}  // namespace opreplay::kernels
