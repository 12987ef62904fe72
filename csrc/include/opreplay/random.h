// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "opreplay/export.h"

namespace opreplay {

/// Fills a floating point or complex tensor with values uniform in [-1, 1), each exact in its
/// dtype.
///
/// The tensor's memory is seen as a sequence of 32-bit little-endian words. Word i is
///
///     x = low32(i) ^ k1;  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;
///     x ^= k2;            x *= 0x846ca68b;  x ^= x >> 16
///
/// with k1 the lower and k2 the upper half of the 64-bit key
/// split_mix(split_mix(split_mix(seed) ^ stream) ^ (i >> 32)), where split_mix is one step of
/// SplitMix64. An element of b bits reads its own b bits of these words (they may be part of a word
/// or two words), takes the upper p of them as a signed integer k, and becomes k / 2^(p-1). p is
/// the number of significand bits of the dtype: float64 53, float32 24, float16 11, bfloat16 8,
/// float8_e4m3fn(uz) 4, float8_e5m2(fnuz) 3, each of the two float4_e2m1 in a byte 2.
/// float8_e8m0fnu holds powers of two only and becomes 2^(u - 7), u the upper 3 bits.
///
/// The same seed and stream give the same bits on every device and for any number of threads.
/// The tensor must be non-overlapping and dense; it is filled in the order of its memory.
OPREPLAY_API void fill_random(const at::Tensor& tensor, uint64_t seed, uint64_t stream);

/// Fills an integer or bool tensor with values uniform in [low, high).
///
/// With n = high - low and the words of fill_random(): where n is a power of two that the b bits
/// of an element can hold, the element is low plus the upper log2(n) bits of its own b bits.
/// Otherwise element e is low + floor(word(e) * n / 2^32) if n <= 2^32, and
/// low + floor(r * n / 2^64) with r its own 64 bits if not; a value's probability is then within
/// 2^-32 (2^-64) of 1/n.
///
/// The tensor must be non-overlapping and dense; it is filled in the order of its memory.
OPREPLAY_API void fill_random_integers(
    const at::Tensor& tensor, int64_t low, int64_t high, uint64_t seed, uint64_t stream);

}  // namespace opreplay
