// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace opreplay::kernels {

/// One step of SplitMix64: spreads every input bit over the result.
constexpr uint64_t split_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Key of a run of 2^32 words.
struct WordKey {
  uint32_t first;
  uint32_t second;
};

/// Key of the words whose index has the upper half `index_high`.
constexpr WordKey word_key(uint64_t seed, uint64_t stream, uint64_t index_high) {
  const uint64_t key = split_mix(split_mix(split_mix(seed) ^ stream) ^ index_high);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

/// Word number `index` (lower half) of the sequence that the key names.
constexpr uint32_t random_word(uint32_t index, WordKey key) {
  uint32_t x = index ^ key.first;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x ^= key.second;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace opreplay::kernels
