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

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
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
  uint32_t threads = 16;        ///< threads of a block by default
  uint32_t blocks = 5;          ///< blocks of a grid at most, where a kernel strides
  uint32_t blocks_at_once = 2;  ///< blocks in flight
  uint64_t order_seed = 0;      ///< chooses the order of the blocks
  int64_t launches = 0;         ///< counted up by each launch
};

inline Settings& settings() {
  static Settings instance;
  return instance;
}

/// A barrier of one block that knows when a thread has left the kernel while others wait for it.
class BlockBarrier {
 public:
  explicit BlockBarrier(uint32_t threads) : threads_(threads) {}

  void arrive() {
    std::unique_lock lock(mutex_);
    const uint64_t phase = phase_;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++phase_;
      all_here_.notify_all();
      return;
    }
    all_here_.wait(lock, [&] { return phase_ != phase || left_ > 0; });
    divergent_ = divergent_ || phase_ == phase;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    ++left_;
    divergent_ = divergent_ || arrived_ > 0;
    all_here_.notify_all();
  }

  [[nodiscard]] bool divergent() const { return divergent_; }

 private:
  const uint32_t threads_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  uint32_t arrived_ = 0;
  uint32_t left_ = 0;
  uint64_t phase_ = 0;
  bool divergent_ = false;
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

inline uint32_t default_threads() { return emulated::settings().threads; }
inline uint32_t default_blocks() { return emulated::settings().blocks; }

/// Runs the grid and waits for it. `stream` has no meaning here.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...),
            uint32_t blocks,
            uint32_t threads,
            size_t shared_bytes,
            void* /*stream*/,
            Arguments... arguments) {
  constexpr size_t kSharedLimit = 48 * 1024;  // what every GPU gives without being asked twice
  if (blocks == 0 || threads == 0 || threads > 1024 || shared_bytes > kSharedLimit) {
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
