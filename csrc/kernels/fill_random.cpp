// SPDX-License-Identifier: MIT
#include "kernels/fill_random.h"

#include <algorithm>
#include <cstring>

#include "kernels/fill_random_entry.h"
#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

/// A word of the tensor's memory, which may begin at any element.
using Word = uint32_t __attribute__((aligned(1), may_alias));

/// Writes out[i] = entry(word number first + i): the loop that every format compiles for itself.
template <class Entry>
inline __attribute__((always_inline)) void write_words(
    Word* out, uint32_t first, int64_t count, CounterKeys keys, const Entry& entry) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = entry(random_word(first + static_cast<uint32_t>(i), keys));
  }
}

/// The same for elements of two words; `first` and `count` are even.
template <class Entry>
inline __attribute__((always_inline)) void write_pairs(
    Word* out, uint32_t first, int64_t count, CounterKeys keys, const Entry& entry) {
  for (int64_t i = 0; i < count / 2; ++i) {
    const uint32_t index = first + static_cast<uint32_t>(2 * i);
    const auto value = entry(random_word(index, keys), random_word(index + 1, keys));
    std::memcpy(out + 2 * i, &value, sizeof value);
  }
}

OPREPLAY_VECTOR_CLONES
void fill_words(Word* out, uint32_t first, int64_t count, CounterKeys keys, const FillRule& rule) {
  const NarrowFloat narrow = rule.narrow;
  const IntegerLanes lanes = rule.lanes;
  switch (rule.kind) {
    case FillKind::kFloat64:
      return write_pairs(out, first, count, keys, float64_entry);
    case FillKind::kFloat32:
      return write_words(out, first, count, keys, float32_entry);
    case FillKind::kHalves:
      return write_words(
          out, first, count, keys, [narrow](uint32_t word) { return halves_entry(word, narrow); });
    case FillKind::kBytes:
      return write_words(
          out, first, count, keys, [narrow](uint32_t word) { return bytes_entry(word, narrow); });
    case FillKind::kPowersOfTwo:
      return write_words(out, first, count, keys, powers_of_two_entry);
    case FillKind::kNibbles:
      return write_words(out, first, count, keys, nibbles_entry);
    case FillKind::kLanes:
      return write_words(
          out, first, count, keys, [lanes](uint32_t word) { return lanes_entry(word, lanes); });
    default:
      return write_pairs(out, first, count, keys, [&rule](uint32_t low_word, uint32_t high_word) {
        return integer64_entry(low_word, high_word, rule.low, rule.range);
      });
  }
}

/// A word for each element of type T.
template <class T>
inline __attribute__((always_inline)) void write_scaled(unsigned char* out,
                                                        uint32_t first,
                                                        int64_t count,
                                                        CounterKeys keys,
                                                        uint64_t low,
                                                        uint32_t range) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_word(first + static_cast<uint32_t>(i), keys);
    const auto value = static_cast<T>(scaled_entry(word, low, range));
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof value);
  }
}

OPREPLAY_VECTOR_CLONES
void fill_scaled(
    unsigned char* out, uint32_t first, int64_t count, CounterKeys keys, const FillRule& rule) {
  const uint64_t low = rule.low;
  const auto range = static_cast<uint32_t>(rule.range);
  switch (rule.width) {
    case 1:
      return write_scaled<uint8_t>(out, first, count, keys, low, range);
    case 2:
      return write_scaled<uint16_t>(out, first, count, keys, low, range);
    case 4:
      return write_scaled<uint32_t>(out, first, count, keys, low, range);
    default:
      return write_scaled<uint64_t>(out, first, count, keys, low, range);
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

/// Fills memory by words, in pairs, so that an element of two words is never split.
void fill_memory(void* data,
                 int64_t bytes,
                 const FillRule& rule,
                 uint64_t seed,
                 uint64_t stream,
                 const ParallelFor& parallel_for) {
  auto* const out = static_cast<unsigned char*>(data);
  const int64_t pairs = bytes / 8;
  parallel_for(pairs, kGrain / 2, [&](int64_t begin, int64_t end) {
    for_each_run(
        2 * begin, 2 * end, seed, stream, [&](int64_t first, int64_t count, CounterKeys keys) {
          fill_words(reinterpret_cast<Word*>(out + 4 * first),
                     static_cast<uint32_t>(first),
                     count,
                     keys,
                     rule);
        });
  });
  if (const int64_t rest = bytes % 8; rest != 0) {
    unsigned char last[8];
    const int64_t first = 2 * pairs;
    fill_words(reinterpret_cast<Word*>(last),
               static_cast<uint32_t>(first),
               2,
               counter_keys(seed, stream, static_cast<uint64_t>(first) >> 32),
               rule);
    std::memcpy(out + 8 * pairs, last, static_cast<size_t>(rest));
  }
}

}  // namespace

void fill_random_cpu(void* data,
                     int64_t bytes,
                     RandomFormat format,
                     uint64_t seed,
                     uint64_t stream_of_bits,
                     const ParallelFor& parallel_for) {
  fill_memory(data, bytes, float_rule(format), seed, stream_of_bits, parallel_for);
}

void fill_random_integers_cpu(void* data,
                              int64_t count,
                              int width,
                              uint64_t low,
                              uint64_t range,
                              uint64_t seed,
                              uint64_t stream_of_bits,
                              const ParallelFor& parallel_for) {
  const FillRule rule = integer_rule(width, low, range);
  if (rule.kind != FillKind::kScaled) {
    fill_memory(data, count * width, rule, seed, stream_of_bits, parallel_for);
    return;
  }
  auto* const out = static_cast<unsigned char*>(data);
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for_each_run(
        begin, end, seed, stream_of_bits, [&](int64_t first, int64_t run, CounterKeys keys) {
          fill_scaled(out + first * width, static_cast<uint32_t>(first), run, keys, rule);
        });
  });
}

}  // namespace opreplay::kernels
