// SPDX-License-Identifier: MIT
//
// What a kernel needs from a GPU, and the only file that names one. Kernels are written once
// against this header: block and thread ids, a barrier, shared memory, integer atomics and a
// launch. Nothing here knows how wide a warp is.
//
// OPREPLAY_EMULATED_GPU selects a third implementation, on threads of the CPU, with which the tests
// run the very same kernel sources. A plain C++ compiler gets only the two function markers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(OPREPLAY_EMULATED_GPU)

#include "emulate/gpu_emulated.h"

#elif defined(__HIP__)

#include <hip/hip_runtime.h>
#define OPREPLAY_VENDOR(name) hip##name
#define OPREPLAY_WALL_TICKS_PER_US 100  // where a device counts slower, limits come later
#define OPREPLAY_KERNEL __global__
#define OPREPLAY_DEVICE __device__ inline
#define OPREPLAY_HOST_DEVICE __host__ __device__ inline

#elif defined(__CUDACC__)

#include <cuda_runtime.h>
#define OPREPLAY_VENDOR(name) cuda##name
#define OPREPLAY_WALL_TICKS_PER_US 1000
#define OPREPLAY_KERNEL __global__
#define OPREPLAY_DEVICE __device__ inline
#define OPREPLAY_HOST_DEVICE __host__ __device__ inline

#else

#define OPREPLAY_HOST_DEVICE inline

#endif

#if defined(OPREPLAY_VENDOR)

namespace opreplay::gpu {

OPREPLAY_DEVICE uint32_t thread_id() { return threadIdx.x; }
OPREPLAY_DEVICE uint32_t block_id() { return blockIdx.x; }
OPREPLAY_DEVICE uint32_t threads_per_block() { return blockDim.x; }
OPREPLAY_DEVICE uint32_t blocks_per_grid() { return gridDim.x; }

/// All threads of the block arrive before any goes on; their writes are seen after it.
OPREPLAY_DEVICE void barrier() { __syncthreads(); }

/// The block's shared memory, as many bytes as the launch asked for, aligned to 16.
OPREPLAY_DEVICE void* shared_memory() {
  extern __shared__ uint4 opreplay_shared_memory[];
  return opreplay_shared_memory;
}

/// Relaxed atomics on global or shared memory; each returns the value before.
OPREPLAY_DEVICE int32_t atomic_add(int32_t* at, int32_t value) { return atomicAdd(at, value); }
OPREPLAY_DEVICE int32_t atomic_max(int32_t* at, int32_t value) { return atomicMax(at, value); }
OPREPLAY_DEVICE uint32_t atomic_or(uint32_t* at, uint32_t value) { return atomicOr(at, value); }

OPREPLAY_DEVICE uint32_t popcount(uint32_t bits) { return static_cast<uint32_t>(__popc(bits)); }

/// Cycles of this core, whatever its clock is now.
OPREPLAY_DEVICE uint64_t cycles() { return static_cast<uint64_t>(clock64()); }

/// A clock of fixed rate, the same for all cores.
OPREPLAY_DEVICE uint64_t wall_ticks() {
#if defined(__HIP__) && defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime();
#elif defined(__CUDA_ARCH__)
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
#else
  return 0;
#endif
}
inline int64_t wall_ticks_per_us() { return OPREPLAY_WALL_TICKS_PER_US; }

/// Words in host memory, read and written past every cache.
OPREPLAY_DEVICE uint32_t load_from_host(const uint32_t* at) {
  return *static_cast<const volatile uint32_t*>(at);
}
OPREPLAY_DEVICE void store_to_host(uint32_t* at, uint32_t value) {
  *static_cast<volatile uint32_t*>(at) = value;
  __threadfence_system();
}

/// Threads of a block, and blocks of a grid at most: kernels stride over what is left.
inline uint32_t default_threads() { return 256; }
inline uint32_t default_blocks() { return 2048; }

/// Bytes of shared memory for a block, which every GPU gives without being asked twice.
inline size_t shared_limit() { return 48 * 1024; }

/// Items up to which one block that keeps all in shared memory is quicker than several launches.
inline int64_t one_block_items() { return 4096; }

/// Queues one launch on `stream`, which is the vendor's stream handle (null: the default stream).
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...),
            uint32_t blocks,
            uint32_t threads,
            size_t shared_bytes,
            void* stream,
            Arguments... arguments) {
  kernel<<<blocks, threads, shared_bytes, static_cast<OPREPLAY_VENDOR(Stream_t)>(stream)>>>(
      static_cast<Parameters>(arguments)...);
  const auto error = OPREPLAY_VENDOR(GetLastError)();
  if (error != OPREPLAY_VENDOR(Success)) {
    throw std::runtime_error(std::string("kernel launch failed: ") +
                             OPREPLAY_VENDOR(GetErrorString)(error) + "; " +
                             std::to_string(blocks) + " blocks of " + std::to_string(threads) +
                             " threads, " + std::to_string(shared_bytes) + " bytes shared");
  }
}

}  // namespace opreplay::gpu

#endif

#if defined(OPREPLAY_KERNEL)

namespace opreplay::gpu {

/// This thread among all of the grid, and how many there are: the start and the step of a strided
/// loop.
OPREPLAY_DEVICE int64_t global_id() {
  return static_cast<int64_t>(block_id()) * threads_per_block() + thread_id();
}
OPREPLAY_DEVICE int64_t global_size() {
  return static_cast<int64_t>(blocks_per_grid()) * threads_per_block();
}

/// Blocks for one thread per item, at least one and at most default_blocks().
inline uint32_t blocks_for(int64_t items) {
  const int64_t threads = default_threads();
  const int64_t blocks = (items + threads - 1) / threads;
  const int64_t most = default_blocks();
  return static_cast<uint32_t>(blocks < 1 ? 1 : (blocks > most ? most : blocks));
}

}  // namespace opreplay::gpu

#endif
