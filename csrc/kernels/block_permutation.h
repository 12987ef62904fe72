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

/// Largest pool: row and column of an element must each fit in 16 bits with one bit to spare, so
/// that a processor works on twice as many at once as on 32 bits.
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
  uint16_t rows;
  uint16_t columns;
  uint32_t rounds;
  uint16_t keys[8];
};

/// The order that a seed names; 1 <= pool <= kMaxPool.
inline BlockPermutation block_permutation(uint32_t pool, uint64_t seed) {
  BlockPermutation result{};
  result.pool = pool;
  auto root = static_cast<uint32_t>(std::sqrt(static_cast<double>(pool)));
  while (static_cast<uint64_t>(root) * root < pool) ++root;
  result.rows = static_cast<uint16_t>(root);
  result.columns = static_cast<uint16_t>((pool + root - 1) / root);
  result.rounds = pool >= kLargePool ? 4 : 8;
  constexpr uint64_t kStream = 0x626c6f636b73;  // "blocks"
  for (uint32_t i = 0; i < 8; i += 2) {
    const CounterKeys keys = counter_keys(seed, kStream, i);
    result.keys[i] = static_cast<uint16_t>(keys.k1);
    result.keys[i + 1] = static_cast<uint16_t>(keys.k2);
  }
  return result;
}

/// A hash of a coordinate, scaled to [0, size): two rounds of a 16-bit multiply, of which the high
/// bits are kept. One round leaves the images of neighbours a constant distance apart.
OPREPLAY_HOST_DEVICE uint16_t round_value(uint16_t coordinate, uint16_t key, uint16_t size) {
  auto x = static_cast<uint16_t>((coordinate ^ key) * 0x88b5u);
  x = static_cast<uint16_t>((x ^ (x >> 7)) * 0xdb2du);
  return static_cast<uint16_t>((uint32_t{x} * size) >> 16);
}

/// (a + b) % size of an a and a b below size, without a branch.
OPREPLAY_HOST_DEVICE uint16_t add_modulo(uint16_t a, uint16_t b, uint16_t size) {
  const auto sum = static_cast<uint16_t>(a + b);
  const auto less = static_cast<uint16_t>(sum - size);
  return sum < less ? sum : less;
}

/// One pass through the network.
OPREPLAY_HOST_DEVICE uint32_t permute_once(uint32_t element, const BlockPermutation& order) {
  auto row = static_cast<uint16_t>(element / order.columns);
  auto column = static_cast<uint16_t>(element % order.columns);
  for (uint32_t round = 0; round < order.rounds; round += 2) {
    row = add_modulo(row, round_value(column, order.keys[round], order.rows), order.rows);
    column =
        add_modulo(column, round_value(row, order.keys[round + 1], order.columns), order.columns);
  }
  return uint32_t{row} * order.columns + column;
}

/// What is left to do for an image that may lie outside of the pool.
OPREPLAY_HOST_DEVICE uint32_t walk_into_pool(uint32_t image, const BlockPermutation& order) {
  while (image >= order.pool) image = permute_once(image, order);
  return image;
}

/// The place of `element` in the order.
OPREPLAY_HOST_DEVICE uint32_t permute(uint32_t element, const BlockPermutation& order) {
  return walk_into_pool(permute_once(element, order), order);
}

}  // namespace opreplay::kernels
