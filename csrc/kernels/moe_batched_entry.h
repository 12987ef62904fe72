// SPDX-License-Identifier: MIT
//
// What the batched table holds, entry by entry, for the CPU twin and the kernel.
#pragma once

#include <cstdint>

#include "kernels/gpu.h"
#include "kernels/moe_batched.h"

namespace opreplay::kernels {

/// Tokens of an expert as far as the batch can hold them; the status reports what it cannot.
OPREPLAY_HOST_DEVICE int32_t batched_tokens(const MoeBatchedInput& in, int32_t expert) {
  const int32_t tokens = in.expert_num_tokens[expert];
  return tokens < 0 ? 0 : (tokens < in.max_tokens ? tokens : in.max_tokens);
}

OPREPLAY_HOST_DEVICE bool batched_outside(const MoeBatchedInput& in, int32_t expert) {
  const int32_t tokens = in.expert_num_tokens[expert];
  return tokens < 0 || tokens > in.max_tokens;
}

OPREPLAY_HOST_DEVICE int32_t batched_padded(const MoeBatchedInput& in, int32_t expert) {
  return (batched_tokens(in, expert) + in.block_size - 1) / in.block_size * in.block_size;
}

OPREPLAY_HOST_DEVICE int32_t batched_excess(const MoeBatchedInput& in,
                                            const MoeBatchedOutput& out,
                                            int32_t total) {
  const int64_t named = out.num_blocks * in.block_size;
  const int64_t room = out.length < named ? out.length : named;
  return total > room ? total - static_cast<int32_t>(room) : 0;
}

}  // namespace opreplay::kernels
