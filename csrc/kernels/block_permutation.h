// SPDX-License-Identifier: MIT
//
// A random order of the blocks of a pool, one element at a time: a bijection of [0, pool), so that
// nothing of the pool's size is stored or sorted.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/gpu.h"

namespace opreplay::kernels {

/// Largest pool: row and column of an element must each fit in 16 bits with one bit to spare.
constexpr int64_t kMaxPool = int64_t{1} << 30;

/// A pool this large takes four rounds, a smaller one eight: it has fewer values per round.
constexpr uint32_t kLargePool = 4096;

/// A mixed-radix Feistel network over rows x columns, the smallest such rectangle that holds the
/// pool. An element x is (x / columns, x % columns). Each round adds a keyed hash of one
/// coordinate to the other one, modulo its size, which can be undone: so the network is a
/// bijection of the rectangle. An image outside of the pool goes through the network again until it
/// falls inside, which keeps it a bijection of the pool.
struct BlockPermutation {
  uint32_t pool;
  uint32_t rows;
  uint32_t columns;
  uint32_t rounds;
  uint32_t keys[8];
};

/// The order that a seed names; 1 <= pool <= kMaxPool.
inline BlockPermutation block_permutation(uint32_t pool, uint64_t seed) {
  BlockPermutation result{};
  result.pool = pool;
  auto root = static_cast<uint32_t>(std::sqrt(static_cast<double>(pool)));
  while (static_cast<uint64_t>(root) * root < pool) ++root;
  result.rows = root;
  result.columns = (pool + root - 1) / root;
  result.rounds = pool >= kLargePool ? 4 : 8;
  constexpr uint64_t kStream = 0x626c6f636b73;  // "blocks"
  for (uint32_t i = 0; i < 8; i += 2) {
    const CounterKeys keys = counter_keys(seed, kStream, i);
    result.keys[i] = keys.k1;
    result.keys[i + 1] = keys.k2;
  }
  return result;
}

/// A hash of a coordinate, scaled to [0, size).
OPREPLAY_HOST_DEVICE uint32_t round_value(uint32_t coordinate, uint32_t key, uint32_t size) {
  uint32_t x = (coordinate ^ key) * 0x846ca68bu;
  x ^= x >> 15;
  return ((x & 0xffffu) * size) >> 16;
}

/// a - b if that is not negative, else a: the remainder by b of an a below 2 b, without a branch.
OPREPLAY_HOST_DEVICE uint32_t wrap_once(uint32_t a, uint32_t b) {
  const uint32_t less = a - b;
  return a < less ? a : less;
}

/// One pass through the network.
OPREPLAY_HOST_DEVICE uint32_t permute_once(uint32_t row,
                                           uint32_t column,
                                           const BlockPermutation& order) {
  for (uint32_t round = 0; round < order.rounds; round += 2) {
    row = wrap_once(row + round_value(column, order.keys[round], order.rows), order.rows);
    column =
        wrap_once(column + round_value(row, order.keys[round + 1], order.columns), order.columns);
  }
  return row * order.columns + column;
}

/// What is left to do for an image that may lie outside of the pool.
OPREPLAY_HOST_DEVICE uint32_t walk_into_pool(uint32_t image, const BlockPermutation& order) {
  while (image >= order.pool) {
    image = permute_once(image / order.columns, image % order.columns, order);
  }
  return image;
}

/// The place of `element` in the order.
OPREPLAY_HOST_DEVICE uint32_t permute(uint32_t element, const BlockPermutation& order) {
  return walk_into_pool(permute_once(element / order.columns, element % order.columns, order),
                        order);
}

}  // namespace opreplay::kernels
