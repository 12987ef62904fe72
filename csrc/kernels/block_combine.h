// SPDX-License-Identifier: MIT
//
// A prefix combination of one value per thread, by the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/gpu.h"

namespace opreplay::kernels {

/// What a block has combined: all values before this thread's, and all values.
template <class T>
struct Combined {
  T before;
  T all;
};

/// Combines the values of all threads by `combine(T, T)`, which is associative and has T{} as its
/// neutral element. All threads of the block call it; `partial` is shared memory, one entry for
/// each thread, free again when the call returns.
template <class T>
OPREPLAY_DEVICE Combined<T> combine_block(const T& value, T* partial) {
  const uint32_t thread = gpu::thread_id();
  const uint32_t threads = gpu::threads_per_block();
  partial[thread] = value;
  for (uint32_t distance = 1; distance < threads; distance *= 2) {
    gpu::barrier();
    const T before = thread >= distance ? partial[thread - distance] : T{};
    gpu::barrier();
    partial[thread] = combine(before, partial[thread]);
  }
  gpu::barrier();
  const Combined<T> result{thread > 0 ? partial[thread - 1] : T{}, partial[threads - 1]};
  gpu::barrier();
  return result;
}

/// The items that a thread takes where each takes a run of neighbours.
struct ThreadRun {
  int64_t begin;
  int64_t end;
};

OPREPLAY_DEVICE ThreadRun thread_run(int64_t items) {
  const int64_t threads = gpu::threads_per_block();
  const int64_t run = (items + threads - 1) / threads;
  const int64_t begin = run * gpu::thread_id();
  const int64_t end = begin + run;
  return {begin < items ? begin : items, end < items ? end : items};
}

/// Batches up to this size are planned by each block for itself, in shared memory, so that one
/// launch does all.
constexpr int64_t kSmallBatch = 1024;

}  // namespace opreplay::kernels
