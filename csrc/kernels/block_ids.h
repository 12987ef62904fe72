// SPDX-License-Identifier: MIT
//
// Which block of the pool the n-th block that is handed out is.
#pragma once

#include <cstdint>
#include <numeric>

#include "kernels/block_permutation.h"
#include "kernels/gpu.h"

namespace opreplay::kernels {

enum class BlockOrder : int32_t {
  kPermuted,    ///< random over the whole pool: a server after hours
  kContiguous,  ///< ascending: a fresh server
  kStrided,     ///< neighbours of a sequence lie num_seqs apart: sequences that grew in step
};

/// The blocks [first, first + pool) in the order in which they are handed out. After the last one
/// it begins again.
struct BlockIds {
  BlockOrder order;
  uint32_t first;
  uint32_t stride;
  BlockPermutation permutation;  ///< knows the pool's size, whatever the order
};

/// The smallest stride from `wanted` on that visits every block of the pool.
inline uint32_t coprime_stride(uint32_t wanted, uint32_t pool) {
  uint32_t stride = wanted < 1 ? 1 : wanted;
  while (std::gcd(stride, pool) != 1) ++stride;
  return stride % pool;
}

inline BlockIds block_ids(
    BlockOrder order, uint32_t first, uint32_t pool, uint32_t num_seqs, uint64_t seed) {
  return {order, first, coprime_stride(num_seqs, pool), block_permutation(pool, seed)};
}

/// Id of the block that is handed out as number `ordinal`.
OPREPLAY_HOST_DEVICE int32_t block_id(int64_t ordinal, const BlockIds& ids) {
  const uint32_t pool = ids.permutation.pool;
  const auto element = static_cast<uint32_t>(ordinal < pool ? ordinal : ordinal % pool);
  uint32_t place = element;
  if (ids.order == BlockOrder::kPermuted) {
    place = permute(element, ids.permutation);
  } else if (ids.order == BlockOrder::kStrided) {
    place = static_cast<uint32_t>(static_cast<uint64_t>(element) * ids.stride % pool);
  }
  return static_cast<int32_t>(place + ids.first);
}

/// Writes the ids of `count` blocks that are handed out one after the other. CPU only; equal to
/// block_id() of each.
void write_block_ids(int32_t* out, int64_t ordinal, int64_t count, const BlockIds& ids);

}  // namespace opreplay::kernels
