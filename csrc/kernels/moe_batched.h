// SPDX-License-Identifier: MIT
//
// The block table of batched experts: expert e holds its tokens in rows e * max_tokens and on, so
// that only their number is known and there is nothing to sort.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace opreplay::kernels {

struct MoeBatchedInput {
  const int32_t* expert_num_tokens;  ///< [num_experts]
  int32_t num_experts;
  int32_t max_tokens;
  int32_t block_size;
};

struct MoeBatchedOutput {
  int32_t* sorted_ids;  ///< [length]: expert * max_tokens + i; padding is num_experts * max_tokens
  int32_t* block_experts;  ///< [num_blocks], -1 past the last valid one
  int32_t* num_valid;      ///< [1]: padded total
  int32_t* status;         ///< [kMoeBatchedStatus]
  int64_t length;
  int64_t num_blocks;
};

/// Entries of `status`: all zero when the table is good.
inline constexpr int32_t kMoeBatchedStatus = 2;
inline constexpr int32_t kBatchedTooLong = 0;  ///< entries by which the table does not fit
inline constexpr int32_t kBatchedOutside = 1;  ///< experts with a number outside [0, max_tokens]

/// int32 entries of scratch memory.
int64_t moe_batched_workspace(const MoeBatchedInput& in);

void moe_batched_cpu(const MoeBatchedInput& in,
                     const MoeBatchedOutput& out,
                     int32_t* workspace,
                     const ParallelFor& parallel_for);
void moe_batched_gpu(const MoeBatchedInput& in,
                     const MoeBatchedOutput& out,
                     int32_t* workspace,
                     void* stream);

}  // namespace opreplay::kernels
