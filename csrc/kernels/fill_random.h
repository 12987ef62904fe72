// SPDX-License-Identifier: MIT
//
// Random bits for tensors, by position: the same for any number of threads and on any device.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace opreplay::kernels {

/// How the random bits of an element become its value. The rule is in opreplay/random.h.
enum class RandomFormat {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3Fn,
  kFloat8E4M3FnUz,
  kFloat8E5M2,
  kFloat8E5M2FnUz,
  kFloat8E8M0,
  kFloat4E2M1Pair,
};

/// Fills `bytes` bytes, a whole number of elements of the format.
void fill_random_cpu(void* data,
                     int64_t bytes,
                     RandomFormat format,
                     uint64_t seed,
                     uint64_t stream_of_bits,
                     const ParallelFor& parallel_for);
void fill_random_gpu(void* data,
                     int64_t bytes,
                     RandomFormat format,
                     uint64_t seed,
                     uint64_t stream_of_bits,
                     void* stream);

/// Fills `count` integers of `width` bytes (1, 2, 4 or 8) with low + [0, range). A range of 0
/// stands for 2^64. Values wrap at the width, so that signed and unsigned types share the kernel.
void fill_random_integers_cpu(void* data,
                              int64_t count,
                              int width,
                              uint64_t low,
                              uint64_t range,
                              uint64_t seed,
                              uint64_t stream_of_bits,
                              const ParallelFor& parallel_for);
void fill_random_integers_gpu(void* data,
                              int64_t count,
                              int width,
                              uint64_t low,
                              uint64_t range,
                              uint64_t seed,
                              uint64_t stream_of_bits,
                              void* stream);

}  // namespace opreplay::kernels
