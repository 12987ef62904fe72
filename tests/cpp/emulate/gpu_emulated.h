// SPDX-License-Identifier: MIT
//
// The third implementation of kernels/gpu.h: a grid runs on threads of the CPU.
//
// The threads of a block are threads, and at least two blocks are in flight at a time, in a seeded
// random order, with nothing between them that orders their memory accesses. So a missing barrier
// and a race between blocks are data races to ThreadSanitizer, and a write past shared memory is an
// overflow to AddressSanitizer: every block has its own allocation, filled with a pattern that is
// no sensible value.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define OPREPLAY_KERNEL
#define OPREPLAY_DEVICE inline
#define OPREPLAY_HOST_DEVICE inline

namespace opreplay::gpu {

namespace emulated {

/// What a test chooses for the launches that follow.
struct Settings {
  uint32_t threads = 16;            ///< threads of a block by default
  uint32_t blocks = 5;              ///< blocks of a grid at most, where a kernel strides
  uint32_t blocks_at_once = 2;      ///< blocks in flight
  size_t shared_limit = 48 * 1024;  ///< bytes of shared memory for a block
  int64_t one_block_items = 128;    ///< items up to which one block does all
  uint64_t order_seed = 0;          ///< chooses the order of the blocks
  int64_t launches = 0;             ///< counted up by each launch
};

inline Settings& settings() {
  static Settings instance;
  return instance;
}

/// A barrier of one block that knows when a thread has left the kernel while others wait for it.
///
/// It waits on its own futex: what the standard library waits with is shared by all barriers, and
/// its atomics would order blocks that nothing orders on a GPU.
class BlockBarrier {
 public:
  explicit BlockBarrier(uint32_t threads) : threads_(threads) {}

  void arrive() {
    const uint32_t phase = phase_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      open();
      return;
    }
    // Read in this order: who leaves a kernel that is in order leaves after the phase has changed.
    if (left_.load() > 0 && phase_.load() == phase) give_up();
    while (phase_.load() == phase) {
      syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
    }
  }

  void leave() {
    left_.fetch_add(1);
    if (arrived_.load() > 0) give_up();
  }

  [[nodiscard]] bool divergent() const { return divergent_.load(); }

 private:
  void open() {
    phase_.fetch_add(1);
    syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  void give_up() {
    divergent_.store(true);
    open();
  }

  const uint32_t threads_;
  std::atomic<uint32_t> phase_{0};
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> left_{0};
  std::atomic<bool> divergent_{false};
};

struct Block {
  Block(uint32_t threads, size_t shared_bytes)
      : barrier(threads), shared(static_cast<uint8_t*>(std::malloc(shared_bytes)), &std::free) {
    if (shared_bytes > 0) std::memset(shared.get(), 0xa5, shared_bytes);
  }
  BlockBarrier barrier;
  std::unique_ptr<uint8_t, decltype(&std::free)> shared;
};

/// Where the running thread stands in its grid.
struct Position {
  uint32_t thread = 0;
  uint32_t block = 0;
  uint32_t threads = 0;
  uint32_t blocks = 0;
  Block* state = nullptr;
};

inline Position& position() {
  thread_local Position here;
  return here;
}

}  // namespace emulated

inline uint32_t thread_id() { return emulated::position().thread; }
inline uint32_t block_id() { return emulated::position().block; }
inline uint32_t threads_per_block() { return emulated::position().threads; }
inline uint32_t blocks_per_grid() { return emulated::position().blocks; }
inline void barrier() { emulated::position().state->barrier.arrive(); }
inline void* shared_memory() { return emulated::position().state->shared.get(); }

// Relaxed, as on a GPU: they must not order anything but themselves.
inline int32_t atomic_add(int32_t* at, int32_t value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
inline uint32_t atomic_or(uint32_t* at, uint32_t value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
inline int32_t atomic_max(int32_t* at, int32_t value) {
  int32_t before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < value && !__atomic_compare_exchange_n(
                               at, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

inline uint32_t popcount(uint32_t bits) { return static_cast<uint32_t>(__builtin_popcount(bits)); }

/// Both clocks are the CPU's own; one tick is a nanosecond.
inline uint64_t wall_ticks() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline uint64_t cycles() { return wall_ticks(); }
inline int64_t wall_ticks_per_us() { return 1000; }

inline uint32_t load_from_host(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void store_to_host(uint32_t* at, uint32_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

inline uint32_t default_threads() { return emulated::settings().threads; }
inline uint32_t default_blocks() { return emulated::settings().blocks; }
inline size_t shared_limit() { return emulated::settings().shared_limit; }
inline int64_t one_block_items() { return emulated::settings().one_block_items; }

/// Runs the grid and waits for it. `stream` has no meaning here.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...),
            uint32_t blocks,
            uint32_t threads,
            size_t shared_bytes,
            void* /*stream*/,
            Arguments... arguments) {
  if (blocks == 0 || threads == 0 || threads > 1024 || shared_bytes > shared_limit()) {
    throw std::runtime_error("kernel launch refused: " + std::to_string(blocks) + " blocks of " +
                             std::to_string(threads) + " threads, " + std::to_string(shared_bytes) +
                             " bytes shared");
  }
  auto& settings = emulated::settings();
  ++settings.launches;

  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(settings.order_seed);
  std::shuffle(order.begin(), order.end(), random);

  std::vector<std::unique_ptr<emulated::Block>> states;
  for (uint32_t block = 0; block < blocks; ++block) {
    states.push_back(std::make_unique<emulated::Block>(threads, shared_bytes));
  }

  const uint32_t lanes = std::max(1u, std::min(settings.blocks_at_once, blocks));
  const auto run_thread = [&](uint32_t lane, uint32_t thread) {
    for (uint32_t next = lane; next < blocks; next += lanes) {
      emulated::Block* state = states[order[next]].get();
      emulated::position() = {thread, order[next], threads, blocks, state};
      kernel(static_cast<Parameters>(arguments)...);
      state->barrier.leave();
    }
  };
  std::vector<std::thread> workers;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    for (uint32_t thread = 0; thread < threads; ++thread) {
      workers.emplace_back(run_thread, lane, thread);
    }
  }
  for (auto& worker : workers) worker.join();
  for (uint32_t block = 0; block < blocks; ++block) {
    if (states[block]->barrier.divergent()) {
      throw std::runtime_error("block " + std::to_string(block) +
                               ": some threads left the kernel while others were at a barrier");
    }
  }
}

}  // namespace opreplay::gpu
