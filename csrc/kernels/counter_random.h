// SPDX-License-Identifier: MIT
//
// Random integers as a function of a counter, the same on every device and for any number of
// threads.
#pragma once

#include <cstdint>

#include "kernels/gpu.h"

namespace opreplay {

/// Two keys that choose one of many streams of random numbers.
struct CounterKeys {
  uint32_t k1;
  uint32_t k2;
};

/// One step of the splitmix64 generator: a bijection of 64 bits that scatters them well.
OPREPLAY_HOST_DEVICE uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Keys of a stream. `high` is what a counter has above 32 bits, so that 2^32 elements share keys.
OPREPLAY_HOST_DEVICE CounterKeys counter_keys(uint64_t seed, uint64_t stream, uint64_t high = 0) {
  const uint64_t key = splitmix64(splitmix64(splitmix64(seed) ^ stream) ^ high);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

/// The random number of counter `i`: two rounds of multiply and shift, keyed before and between.
OPREPLAY_HOST_DEVICE uint32_t mix(uint32_t i, uint32_t k1, uint32_t k2) {
  uint32_t x = i ^ k1;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x ^= k2;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

/// Maps 32 random bits to [0, n) without a division.
OPREPLAY_HOST_DEVICE uint32_t below(uint32_t random, uint32_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(random) * n) >> 32);
}

}  // namespace opreplay
