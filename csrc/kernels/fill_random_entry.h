// SPDX-License-Identifier: MIT
//
// How random words become elements, word by word, for the CPU twin and the kernel. The rule is in
// opreplay/random.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/counter_random.h"
#include "kernels/fill_random.h"
#include "kernels/gpu.h"

namespace opreplay::kernels {

/// A float format of 16 or 8 bits, as far as values in [-1, 1] need it. Times `scale`, an integer
/// of the format's significand bits becomes a float32 in [-1, 1] whose exponent field is the narrow
/// format's. It stays normal: nothing is rounded, zero stays zero.
struct NarrowFloat {
  int integer_shift;   ///< takes the significand bits from the top of a word
  int mantissa_shift;  ///< drops the float32 mantissa bits that the format lacks
  float scale;
};

/// Integers of 8, 16 or 32 bits from a range whose size is a power of two, all of a word at once.
struct IntegerLanes {
  int shift;           ///< drops the unused lower bits of each lane
  uint32_t mask;       ///< the used bits, in each lane
  uint32_t low;        ///< what is added, in each lane
  uint32_t upper_bit;  ///< the highest bit of each lane, where a carry would leave it
};

enum class FillKind : int32_t {
  kFloat64,
  kFloat32,
  kHalves,
  kBytes,
  kPowersOfTwo,
  kNibbles,
  kLanes,
  kIntegers64,
  kScaled,  ///< integers that take a word each, whatever their width
};

/// All that an element needs to know.
struct FillRule {
  FillKind kind;
  NarrowFloat narrow;
  IntegerLanes lanes;
  int width;       ///< bytes of an integer
  uint64_t low;    ///< lowest integer
  uint64_t range;  ///< number of integers; 0 is 2^64
};

FillRule float_rule(RandomFormat format);
FillRule integer_rule(int width, uint64_t low, uint64_t range);

/// Word `index` of the run that the keys name.
OPREPLAY_HOST_DEVICE uint32_t random_word(uint32_t index, CounterKeys keys) {
  return mix(index, keys.k1, keys.k2);
}

OPREPLAY_HOST_DEVICE uint32_t float32_entry(uint32_t word) {
  const float value = static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Bits of the value of `width` bits whose own bits are the upper ones of `word`.
OPREPLAY_HOST_DEVICE uint32_t narrow_entry(uint32_t word, int width, NarrowFloat format) {
  const float value =
      static_cast<float>(static_cast<int32_t>(word) >> format.integer_shift) * format.scale;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return ((bits & 0x7fffffffu) >> format.mantissa_shift) | ((bits >> 31) << (width - 1));
}

OPREPLAY_HOST_DEVICE uint32_t halves_entry(uint32_t word, NarrowFloat format) {
  return narrow_entry(word << 16, 16, format) | narrow_entry(word, 16, format) << 16;
}

OPREPLAY_HOST_DEVICE uint32_t bytes_entry(uint32_t word, NarrowFloat format) {
  return narrow_entry(word << 24, 8, format) | narrow_entry(word << 16, 8, format) << 8 |
         narrow_entry(word << 8, 8, format) << 16 | narrow_entry(word, 8, format) << 24;
}

/// Four e8m0 codes, which are the exponent + 127; no carry goes between them.
OPREPLAY_HOST_DEVICE uint32_t powers_of_two_entry(uint32_t word) {
  return ((word >> 5) & 0x07070707u) + 0x78787878u;
}

/// Eight e2m1 codes: by the upper two bits of each nibble 0, 0.5, -1, -0.5, which are 0, 1, 10, 9.
OPREPLAY_HOST_DEVICE uint32_t nibbles_entry(uint32_t word) {
  const uint32_t sign = (word >> 3) & 0x11111111u;
  const uint32_t half = (word >> 2) & 0x11111111u;
  return sign << 3 | (sign & ~half) << 1 | half;
}

OPREPLAY_HOST_DEVICE uint32_t lanes_entry(uint32_t word, IntegerLanes lanes) {
  const uint32_t value = (word >> lanes.shift) & lanes.mask;
  const uint32_t sum = (value & ~lanes.upper_bit) + (lanes.low & ~lanes.upper_bit);
  return sum ^ ((value ^ lanes.low) & lanes.upper_bit);
}

/// A double as two exact halves, because vector units convert 32-bit integers only. Their sum is
/// exact too.
OPREPLAY_HOST_DEVICE double float64_entry(uint32_t low_word, uint32_t high_word) {
  const auto low = static_cast<int32_t>(low_word >> 11);
  const auto high = static_cast<int32_t>(high_word);
  return static_cast<double>(high) * 0x1p-31 + static_cast<double>(low) * 0x1p-52;
}

/// Upper half of a product.
OPREPLAY_HOST_DEVICE uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffu;
  const uint64_t b_low = b & 0xffffffffu;
  const uint64_t middle = (a >> 32) * b_low + (a_low * b_low >> 32);
  const uint64_t rest = a_low * (b >> 32) + (middle & 0xffffffffu);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (rest >> 32);
}

OPREPLAY_HOST_DEVICE uint64_t integer64_entry(uint32_t low_word,
                                              uint32_t high_word,
                                              uint64_t low,
                                              uint64_t range) {
  const uint64_t own = low_word | static_cast<uint64_t>(high_word) << 32;
  return low + (range == 0 ? own : multiply_high(own, range));
}

OPREPLAY_HOST_DEVICE uint64_t scaled_entry(uint32_t word, uint64_t low, uint32_t range) {
  return low + (static_cast<uint64_t>(word) * range >> 32);
}

}  // namespace opreplay::kernels
