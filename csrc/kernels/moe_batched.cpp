// SPDX-License-Identifier: MIT
#include "kernels/moe_batched.h"

#include <algorithm>
#include <numeric>

#include "kernels/moe_batched_entry.h"

namespace opreplay::kernels {

int64_t moe_batched_workspace(const MoeBatchedInput& in) { return int64_t{in.num_experts} + 1; }

void moe_batched_cpu(const MoeBatchedInput& in,
                     const MoeBatchedOutput& out,
                     int32_t* workspace,
                     const ParallelFor& parallel_for) {
  int32_t* starts = workspace;
  int32_t total = 0;
  int32_t outside = 0;
  for (int32_t expert = 0; expert < in.num_experts; ++expert) {
    starts[expert] = total;
    total += batched_padded(in, expert);
    outside += batched_outside(in, expert);
  }
  starts[in.num_experts] = total;
  *out.num_valid = total;
  out.status[kBatchedTooLong] = batched_excess(in, out, total);
  out.status[kBatchedOutside] = outside;
  if (out.status[kBatchedTooLong] > 0) return;

  const int32_t padding = in.num_experts * in.max_tokens;
  const int64_t grain = std::max<int64_t>(1, kGrainEntries * in.num_experts / std::max(1, total));
  parallel_for(in.num_experts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const auto expert = static_cast<int32_t>(e);
      int32_t* ids = out.sorted_ids + starts[expert];
      const int32_t tokens = batched_tokens(in, expert);
      std::iota(ids, ids + tokens, expert * in.max_tokens);
      std::fill(ids + tokens, out.sorted_ids + starts[expert + 1], padding);
      std::fill(out.block_experts + starts[expert] / in.block_size,
                out.block_experts + starts[expert + 1] / in.block_size,
                expert);
    }
  });
  std::fill(out.sorted_ids + total, out.sorted_ids + out.length, padding);
  std::fill(out.block_experts + total / in.block_size, out.block_experts + out.num_blocks, -1);
}

}  // namespace opreplay::kernels
