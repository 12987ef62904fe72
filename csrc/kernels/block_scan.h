// SPDX-License-Identifier: MIT
//
// A prefix sum by the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/gpu.h"

namespace opreplay::kernels {

/// Replaces values[0..count) by their exclusive prefix sums and returns the total, on every thread.
/// All threads of the block call it, after their writes to `values`; they may read `values` when it
/// returns. `partial` is shared memory, one entry for each thread. Each thread sums a run of
/// neighbours.
OPREPLAY_DEVICE int32_t exclusive_scan(int32_t* values, int64_t count, int32_t* partial) {
  const uint32_t thread = gpu::thread_id();
  const uint32_t threads = gpu::threads_per_block();
  const int64_t run = (count + threads - 1) / threads;
  const int64_t begin = run * thread < count ? run * thread : count;
  const int64_t end = begin + run < count ? begin + run : count;

  gpu::barrier();
  int32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += values[i];
  partial[thread] = sum;
  for (uint32_t distance = 1; distance < threads; distance *= 2) {
    gpu::barrier();
    const int32_t before = thread >= distance ? partial[thread - distance] : 0;
    gpu::barrier();
    partial[thread] += before;
  }
  gpu::barrier();
  int32_t running = thread == 0 ? 0 : partial[thread - 1];
  const int32_t total = partial[threads - 1];
  for (int64_t i = begin; i < end; ++i) {
    const int32_t value = values[i];
    values[i] = running;
    running += value;
  }
  gpu::barrier();
  return total;
}

/// The last i in [0, count) with sorted[i] <= value; sorted[0] must not be above it.
OPREPLAY_DEVICE int32_t last_not_above(const int32_t* sorted, int32_t count, int64_t value) {
  int32_t low = 0;
  int32_t high = count;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (sorted[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace opreplay::kernels
