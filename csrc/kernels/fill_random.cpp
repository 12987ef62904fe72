// SPDX-License-Identifier: MIT
#include "kernels/fill_random.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/counter_random.h"
#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

/// A word of the tensor's memory, which may begin at any element.
using Word = uint32_t __attribute__((aligned(1), may_alias));

/// Word `index` of the run that the keys name.
inline uint32_t random_word(uint32_t index, CounterKeys keys) {
  return mix(index, keys.k1, keys.k2);
}

/// A float format of 16 or 8 bits, as far as values in [-1, 1] need it.
struct NarrowFloat {
  int significand_bits;
  int exponent_bias;

  /// Times this, an integer of `significand_bits` bits becomes a float32 in [-1, 1] whose exponent
  /// field is the narrow format's. It stays normal: nothing is rounded, zero stays zero.
  [[nodiscard]] constexpr float scale() const {
    const int exponent = exponent_bias - 127 - (significand_bits - 1);
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }
};

constexpr NarrowFloat narrow_float(RandomFormat format) {
  switch (format) {
    case RandomFormat::kFloat16:
      return {11, 15};
    case RandomFormat::kBFloat16:
      return {8, 127};
    case RandomFormat::kFloat8E4M3Fn:
      return {4, 7};
    case RandomFormat::kFloat8E4M3FnUz:
      return {4, 8};
    case RandomFormat::kFloat8E5M2:
      return {3, 15};
    default:
      return {3, 16};
  }
}

/// Bits of the narrow value k / 2^(p-1), k being the upper p bits of `word`.
template <int width>
inline uint32_t narrow_bits(uint32_t word, int integer_shift, int mantissa_shift, float scale) {
  const float value = static_cast<float>(static_cast<int32_t>(word) >> integer_shift) * scale;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return ((bits & 0x7fffffffu) >> mantissa_shift) | ((bits >> 31) << (width - 1));
}

OPREPLAY_VECTOR_CLONES
void fill_halves(Word* out, uint32_t first, int64_t count, CounterKeys keys, NarrowFloat format) {
  const int integer_shift = 32 - format.significand_bits;
  const int mantissa_shift = 24 - format.significand_bits;
  const float scale = format.scale();
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    out[i] = narrow_bits<16>(word << 16, integer_shift, mantissa_shift, scale) |
             narrow_bits<16>(word, integer_shift, mantissa_shift, scale) << 16;
  }
}

OPREPLAY_VECTOR_CLONES
void fill_bytes(Word* out, uint32_t first, int64_t count, CounterKeys keys, NarrowFloat format) {
  const int integer_shift = 32 - format.significand_bits;
  const int mantissa_shift = 24 - format.significand_bits;
  const float scale = format.scale();
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    out[i] = narrow_bits<8>(word << 24, integer_shift, mantissa_shift, scale) |
             narrow_bits<8>(word << 16, integer_shift, mantissa_shift, scale) << 8 |
             narrow_bits<8>(word << 8, integer_shift, mantissa_shift, scale) << 16 |
             narrow_bits<8>(word, integer_shift, mantissa_shift, scale) << 24;
  }
}

OPREPLAY_VECTOR_CLONES
void fill_float32(Word* out, uint32_t first, int64_t count, CounterKeys keys) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    const float value = static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f;
    out[i] = std::bit_cast<uint32_t>(value);
  }
}

/// `first` and `count` are even: a pair of words is one double.
OPREPLAY_VECTOR_CLONES
void fill_float64(Word* out, uint32_t first, int64_t count, CounterKeys keys) {
  for (int64_t i = 0; i < count / 2; ++i) {
    const uint32_t index = first + static_cast<uint32_t>(2 * i);
    // Two exact halves, because vector units convert 32-bit integers only. Their sum is exact too.
    const auto low = static_cast<int32_t>(random_word(index, keys) >> 11);
    const auto high = static_cast<int32_t>(random_word(index + 1, keys));
    const double value = static_cast<double>(high) * 0x1p-31 + static_cast<double>(low) * 0x1p-52;
    std::memcpy(out + 2 * i, &value, sizeof value);
  }
}

OPREPLAY_VECTOR_CLONES
void fill_powers_of_two(Word* out, uint32_t first, int64_t count, CounterKeys keys) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    // An e8m0 code is the exponent + 127; four of them at once, no carry between them.
    out[i] = ((word >> 5) & 0x07070707u) + 0x78787878u;
  }
}

OPREPLAY_VECTOR_CLONES
void fill_nibbles(Word* out, uint32_t first, int64_t count, CounterKeys keys) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    // Per nibble, from its upper two bits: 0, 0.5, -1, -0.5 are the codes 0, 1, 10, 9.
    const uint32_t sign = (word >> 3) & 0x11111111u;
    const uint32_t half = (word >> 2) & 0x11111111u;
    out[i] = sign << 3 | (sign & ~half) << 1 | half;
  }
}

void fill_words(Word* out, uint32_t first, int64_t count, CounterKeys keys, RandomFormat format) {
  switch (format) {
    case RandomFormat::kFloat64:
      return fill_float64(out, first, count, keys);
    case RandomFormat::kFloat32:
      return fill_float32(out, first, count, keys);
    case RandomFormat::kFloat16:
    case RandomFormat::kBFloat16:
      return fill_halves(out, first, count, keys, narrow_float(format));
    case RandomFormat::kFloat8E4M3Fn:
    case RandomFormat::kFloat8E4M3FnUz:
    case RandomFormat::kFloat8E5M2:
    case RandomFormat::kFloat8E5M2FnUz:
      return fill_bytes(out, first, count, keys, narrow_float(format));
    case RandomFormat::kFloat8E8M0:
      return fill_powers_of_two(out, first, count, keys);
    case RandomFormat::kFloat4E2M1Pair:
      return fill_nibbles(out, first, count, keys);
  }
}

/// Upper half of the product.
inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

/// Integers of 8, 16 or 32 bits, all those of a word at once.
struct IntegerLanes {
  int shift;           ///< drops the unused lower bits of each lane
  uint32_t mask;       ///< the used bits, in each lane
  uint32_t low;        ///< what is added, in each lane
  uint32_t upper_bit;  ///< the highest bit of each lane, where a carry would leave it
};

IntegerLanes integer_lanes(int width, uint64_t low, uint64_t range) {
  const int bits = 8 * width;
  const auto lane = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  const uint32_t repeat = ~uint32_t{0} / lane;
  return {bits - std::countr_zero(range),
          static_cast<uint32_t>(range - 1) * repeat,
          (static_cast<uint32_t>(low) & lane) * repeat,
          (uint32_t{1} << (bits - 1)) * repeat};
}

OPREPLAY_VECTOR_CLONES
void fill_lanes(Word* out, uint32_t first, int64_t count, CounterKeys keys, IntegerLanes lanes) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    const uint32_t value = (word >> lanes.shift) & lanes.mask;
    const uint32_t sum = (value & ~lanes.upper_bit) + (lanes.low & ~lanes.upper_bit);
    out[i] = sum ^ ((value ^ lanes.low) & lanes.upper_bit);
  }
}

/// `first` and `count` are even: a pair of words is one integer.
void fill_integers64(
    Word* out, uint32_t first, int64_t count, CounterKeys keys, uint64_t low, uint64_t range) {
  for (int64_t i = 0; i < count; i += 2) {
    const uint32_t index = first + static_cast<uint32_t>(i);
    const uint64_t own = random_word(index, keys) | uint64_t{random_word(index + 1, keys)} << 32;
    const uint64_t scaled = range == 0 ? own : multiply_high(own, range);
    const uint64_t value = low + scaled;
    std::memcpy(out + i, &value, sizeof value);
  }
}

/// A word for each element, whatever its width.
template <class T>
inline __attribute__((always_inline)) void scale_words_to(
    unsigned char* out, uint32_t first, int64_t count, CounterKeys keys, T low, uint32_t range) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = random_word(first + static_cast<uint32_t>(i), keys);
    const auto value = static_cast<T>(low + static_cast<T>(word * range >> 32));
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof value);
  }
}

OPREPLAY_VECTOR_CLONES
void scale_words(unsigned char* out,
                 int width,
                 uint32_t first,
                 int64_t count,
                 CounterKeys keys,
                 uint64_t low,
                 uint32_t range) {
  switch (width) {
    case 1:
      return scale_words_to(out, first, count, keys, static_cast<uint8_t>(low), range);
    case 2:
      return scale_words_to(out, first, count, keys, static_cast<uint16_t>(low), range);
    case 4:
      return scale_words_to(out, first, count, keys, static_cast<uint32_t>(low), range);
    default:
      return scale_words_to(out, first, count, keys, low, range);
  }
}

/// Enough work for a thread to be worth waking: about 10 us.
constexpr int64_t kGrain = int64_t{1} << 15;

/// Calls body(first, count, keys) for runs of indices that share keys.
template <class Body>
void for_each_run(int64_t begin, int64_t end, uint64_t seed, uint64_t stream, const Body& body) {
  while (begin < end) {
    const int64_t run_end = std::min(end, (begin | 0xffffffff) + 1);
    body(begin, run_end - begin, counter_keys(seed, stream, static_cast<uint64_t>(begin) >> 32));
    begin = run_end;
  }
}

/// Fills memory by words: body(out, first, count, keys) with `first` and `count` even.
template <class Body>
void fill_memory(void* data,
                 int64_t bytes,
                 uint64_t seed,
                 uint64_t stream,
                 const ParallelFor& parallel_for,
                 const Body& body) {
  auto* const out = static_cast<unsigned char*>(data);
  const int64_t pairs = bytes / 8;
  parallel_for(pairs, kGrain / 2, [&](int64_t begin, int64_t end) {
    for_each_run(
        2 * begin, 2 * end, seed, stream, [&](int64_t first, int64_t count, CounterKeys keys) {
          body(reinterpret_cast<Word*>(out + 4 * first), static_cast<uint32_t>(first), count, keys);
        });
  });
  if (const int64_t rest = bytes % 8; rest != 0) {
    unsigned char last[8];
    const int64_t first = 2 * pairs;
    body(reinterpret_cast<Word*>(last),
         static_cast<uint32_t>(first),
         2,
         counter_keys(seed, stream, static_cast<uint64_t>(first) >> 32));
    std::memcpy(out + 8 * pairs, last, static_cast<size_t>(rest));
  }
}

}  // namespace

void fill_random(void* data,
                 int64_t bytes,
                 RandomFormat format,
                 uint64_t seed,
                 uint64_t stream,
                 const ParallelFor& parallel_for) {
  fill_memory(data,
              bytes,
              seed,
              stream,
              parallel_for,
              [format](Word* out, uint32_t first, int64_t count, CounterKeys keys) {
                fill_words(out, first, count, keys, format);
              });
}

void fill_random_integers(void* data,
                          int64_t count,
                          int width,
                          uint64_t low,
                          uint64_t range,
                          uint64_t seed,
                          uint64_t stream,
                          const ParallelFor& parallel_for) {
  const bool own_bits = range == 0 || (std::has_single_bit(range) && range > 1 &&
                                       (width == 8 || range <= uint64_t{1} << (8 * width)));
  if (width < 8 && own_bits) {
    fill_memory(data,
                count * width,
                seed,
                stream,
                parallel_for,
                [lanes = integer_lanes(width, low, range)](
                    Word* out, uint32_t first, int64_t words, CounterKeys keys) {
                  fill_lanes(out, first, words, keys, lanes);
                });
  } else if (own_bits || range > uint64_t{1} << 32) {
    fill_memory(data,
                count * width,
                seed,
                stream,
                parallel_for,
                [low, range](Word* out, uint32_t first, int64_t words, CounterKeys keys) {
                  fill_integers64(out, first, words, keys, low, range);
                });
  } else {
    auto* const out = static_cast<unsigned char*>(data);
    parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      for_each_run(begin, end, seed, stream, [&](int64_t first, int64_t run, CounterKeys keys) {
        scale_words(out + first * width,
                    width,
                    static_cast<uint32_t>(first),
                    run,
                    keys,
                    low,
                    static_cast<uint32_t>(range));
      });
    });
  }
}

}  // namespace opreplay::kernels
