// SPDX-License-Identifier: MIT
//
// How a CPU twin runs on several threads without knowing whose threads they are.
#pragma once

#include <cstdint>
#include <functional>

namespace opreplay {

/// Work on the items [begin, end).
using RangeBody = std::function<void(int64_t begin, int64_t end)>;

/// Splits [0, count) into pieces of at least `grain` items, runs the body on all of them and waits.
/// Results never depend on how many pieces there are.
using ParallelFor = std::function<void(int64_t count, int64_t grain, const RangeBody& body)>;

/// Entries of a table that are worth another thread. Waking one costs microseconds, and where other
/// programs keep the cores busy, a slice of the scheduler: decode sizes stay on the caller's
/// thread.
inline constexpr int64_t kGrainEntries = int64_t{1} << 16;

}  // namespace opreplay
