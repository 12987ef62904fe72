// SPDX-License-Identifier: MIT
//
// The emulated GPU itself: a kernel with barriers gives right sums, a kernel that leaves threads
// behind at a barrier is refused. With the argument "race" a needed barrier is left out:
// ThreadSanitizer must report it, and the build expects that run to fail.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "check.h"
#include "kernels/counter_random.h"
#include "kernels/gpu.h"

namespace gpu = opreplay::gpu;

namespace {

/// Each block sums its slice by halving; each thread then reads the sum that thread 0 holds.
OPREPLAY_KERNEL void block_sums(const int32_t* in, int32_t* out, bool leave_out_a_barrier) {
  auto* partial = static_cast<int32_t*>(gpu::shared_memory());
  const uint32_t thread = gpu::thread_id();
  partial[thread] = in[gpu::global_id()];
  for (uint32_t half = gpu::threads_per_block() / 2; half > 0; half /= 2) {
    gpu::barrier();
    if (thread < half) partial[thread] += partial[thread + half];
  }
  if (!leave_out_a_barrier) gpu::barrier();
  out[gpu::global_id()] = partial[0];
}

OPREPLAY_KERNEL void leave_threads_behind() {
  if (gpu::thread_id() % 2 == 0) gpu::barrier();
}

OPREPLAY_KERNEL void count_all(int32_t* total, int64_t items) {
  for (int64_t i = gpu::global_id(); i < items; i += gpu::global_size()) gpu::atomic_add(total, 1);
}

void check_block_sums(bool leave_out_a_barrier) {
  constexpr uint32_t kThreads = 16;
  constexpr uint32_t kBlocks = 6;
  std::vector<int32_t> in(kThreads * kBlocks);
  std::vector<int32_t> out(in.size());
  std::iota(in.begin(), in.end(), 0);
  gpu::launch(block_sums,
              kBlocks,
              kThreads,
              kThreads * sizeof(int32_t),
              nullptr,
              in.data(),
              out.data(),
              leave_out_a_barrier);
  if (leave_out_a_barrier) return;
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto first = static_cast<int32_t>(i / kThreads * kThreads);
    CHECK(out[i] == 16 * first + 120);
  }
}

void check_divergent_barrier_is_refused() {
  bool refused = false;
  try {
    gpu::launch(leave_threads_behind, 1u, 8u, 0u, nullptr);
  } catch (const std::runtime_error& error) {
    refused = std::strstr(error.what(), "at a barrier") != nullptr;
  }
  CHECK(refused);
}

void check_strided_loop_visits_each_item_once() {
  int32_t total = 0;
  gpu::launch(
      count_all, gpu::blocks_for(1000), gpu::default_threads(), 0u, nullptr, &total, int64_t{1000});
  CHECK(total == 1000);
}

/// Values written down once, so that no compiler and no device may change them.
void check_counter_random_is_fixed() {
  const opreplay::CounterKeys keys = opreplay::counter_keys(0, 0);
  CHECK(opreplay::splitmix64(0) == 0xe220a8397b1dcdafu);  // first output of the published generator
  CHECK(opreplay::mix(0, 0, 0) == 0);
  CHECK(opreplay::mix(1, keys.k1, keys.k2) != opreplay::mix(2, keys.k1, keys.k2));
  CHECK(opreplay::below(0xffffffffu, 10) == 9);
  CHECK(opreplay::below(0, 10) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const bool race = argc > 1 && std::strcmp(argv[1], "race") == 0;
  check_block_sums(race);
  if (race) return 0;
  check_divergent_barrier_is_refused();
  check_strided_loop_visits_each_item_once();
  check_counter_random_is_fixed();
  std::puts("emulator: ok");
  return 0;
}
