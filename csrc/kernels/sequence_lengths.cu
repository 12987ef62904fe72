// SPDX-License-Identifier: MIT
#include "kernels/gpu.h"
#include "kernels/sequence_lengths.h"

namespace opreplay::kernels {
namespace {

// Kernel arguments are at most 4 KiB.
static_assert(sizeof(LengthDraw) < 4000);

/// One thread for each sequence.
OPREPLAY_KERNEL void draw_kernel(int32_t* lengths, int64_t count, LengthDraw draw) {
  for (int64_t i = gpu::global_id(); i < count; i += gpu::global_size()) {
    lengths[i] = drawn_length(i, draw);
  }
}

/// One thread for each sequence.
OPREPLAY_KERNEL void ramp_kernel(int32_t* lengths, int64_t count, LengthRamp ramp) {
  for (int64_t i = gpu::global_id(); i < count; i += gpu::global_size()) {
    lengths[i] = ramp_length_of(i, ramp);
  }
}

}  // namespace

void draw_lengths_gpu(int32_t* lengths, int64_t count, const LengthDraw& draw, void* stream) {
  gpu::launch(
      draw_kernel, gpu::blocks_for(count), gpu::default_threads(), 0, stream, lengths, count, draw);
}

void ramp_lengths_gpu(int32_t* lengths, int64_t count, const LengthRamp& ramp, void* stream) {
  gpu::launch(
      ramp_kernel, gpu::blocks_for(count), gpu::default_threads(), 0, stream, lengths, count, ramp);
}

}  // namespace opreplay::kernels
