// SPDX-License-Identifier: MIT
#include "kernels/block_scan.h"
#include "kernels/gpu.h"
#include "kernels/moe_batched.h"
#include "kernels/moe_batched_entry.h"

namespace opreplay::kernels {
namespace {

/// One block: where each expert starts.
OPREPLAY_KERNEL void start_kernel(MoeBatchedInput in, MoeBatchedOutput out, int32_t* starts) {
  auto* partial = static_cast<int32_t*>(gpu::shared_memory());
  if (gpu::thread_id() == 0) out.status[kBatchedOutside] = 0;
  gpu::barrier();
  for (int32_t e = gpu::thread_id(); e < in.num_experts; e += gpu::threads_per_block()) {
    starts[e] = batched_padded(in, e);
    if (batched_outside(in, e)) gpu::atomic_add(&out.status[kBatchedOutside], 1);
  }
  const int32_t total = exclusive_scan(starts, in.num_experts, partial);
  if (gpu::thread_id() != 0) return;
  starts[in.num_experts] = total;
  *out.num_valid = total;
  out.status[kBatchedTooLong] = batched_excess(in, out, total);
}

/// One thread for each entry.
OPREPLAY_KERNEL void fill_kernel(MoeBatchedInput in, MoeBatchedOutput out, const int32_t* starts) {
  const int64_t total = starts[in.num_experts];
  const int64_t named = out.num_blocks * in.block_size;
  const int64_t entries = out.length > named ? out.length : named;
  for (int64_t i = gpu::global_id(); i < entries; i += gpu::global_size()) {
    const int32_t expert = i < total ? last_not_above(starts, in.num_experts, i) : -1;
    if (i < named && i % in.block_size == 0) out.block_experts[i / in.block_size] = expert;
    if (i >= out.length) continue;
    const bool real = expert >= 0 && i - starts[expert] < batched_tokens(in, expert);
    out.sorted_ids[i] = real ? expert * in.max_tokens + static_cast<int32_t>(i - starts[expert])
                             : in.num_experts * in.max_tokens;
  }
}

}  // namespace

void moe_batched_gpu(const MoeBatchedInput& in,
                     const MoeBatchedOutput& out,
                     int32_t* workspace,
                     void* stream) {
  const uint32_t threads = gpu::default_threads();
  gpu::launch(start_kernel, 1, threads, threads * sizeof(int32_t), stream, in, out, workspace);
  const int64_t named = out.num_blocks * in.block_size;
  const int64_t entries = out.length > named ? out.length : named;
  gpu::launch(fill_kernel, gpu::blocks_for(entries), threads, 0, stream, in, out, workspace);
}

}  // namespace opreplay::kernels
