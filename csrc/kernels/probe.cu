// SPDX-License-Identifier: MIT
#include "kernels/probe.h"

#include "kernels/gpu.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kClockNs = 20'000;

/// One thread: the stream waits as long as it does.
OPREPLAY_KERNEL void gate_kernel(ProbeWords* words, uint64_t limit_ticks) {
  const uint64_t begin = gpu::wall_ticks();
  while (gpu::load_from_host(&words->open) == 0) {
    if (gpu::wall_ticks() - begin > limit_ticks) {
      gpu::store_to_host(&words->timed_out, 1);
      return;
    }
  }
}

/// One thread.
OPREPLAY_KERNEL void empty_kernel() {}

/// One thread: both clocks read at either end of a wait.
OPREPLAY_KERNEL void clock_kernel(ProbeWords* words, uint64_t wait_ticks) {
  const uint64_t cycles = gpu::cycles();
  const uint64_t begin = gpu::wall_ticks();
  uint64_t ticks = 0;
  while (ticks < wait_ticks) ticks = gpu::wall_ticks() - begin;
  words->cycles = gpu::cycles() - cycles;
  words->ticks = ticks;
}

uint64_t ticks_of(int64_t ns) {
  return static_cast<uint64_t>(ns) * static_cast<uint64_t>(gpu::wall_ticks_per_us()) / 1000;
}

}  // namespace

void gate_gpu(ProbeWords* words, int64_t limit_ns, void* stream) {
  gpu::launch(gate_kernel, 1, 1, 0, stream, words, ticks_of(limit_ns));
}

void empty_gpu(void* stream) { gpu::launch(empty_kernel, 1, 1, 0, stream); }

void clock_gpu(ProbeWords* words, void* stream) {
  gpu::launch(clock_kernel, 1, 1, 0, stream, words, ticks_of(kClockNs));
}

}  // namespace opreplay::kernels
