// SPDX-License-Identifier: MIT
#include "kernels/sequence_lengths.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kGrain = 1024;

}  // namespace

void draw_lengths_cpu(int32_t* lengths,
                      int64_t count,
                      const LengthDraw& draw,
                      const ParallelFor& parallel_for) {
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) lengths[i] = drawn_length(i, draw);
  });
}

void ramp_lengths_cpu(int32_t* lengths,
                      int64_t count,
                      const LengthRamp& ramp,
                      const ParallelFor& parallel_for) {
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) lengths[i] = ramp_length_of(i, ramp);
  });
}

}  // namespace opreplay::kernels
