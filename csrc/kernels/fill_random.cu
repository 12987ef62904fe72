// SPDX-License-Identifier: MIT
#include "kernels/fill_random.h"
#include "kernels/fill_random_entry.h"
#include "kernels/gpu.h"

namespace opreplay::kernels {
namespace {

/// Writes the lower `count` bytes of a value, in one store where the address allows it.
OPREPLAY_DEVICE void store_bytes(unsigned char* out, uint64_t value, int64_t count) {
  const auto address = reinterpret_cast<uintptr_t>(out);
  if (count == 8 && address % 8 == 0) {
    *reinterpret_cast<uint64_t*>(out) = value;
  } else if (count == 4 && address % 4 == 0) {
    *reinterpret_cast<uint32_t*>(out) = static_cast<uint32_t>(value);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
  }
}

OPREPLAY_DEVICE uint32_t word_entry(uint32_t word, const FillRule& rule) {
  switch (rule.kind) {
    case FillKind::kFloat32:
      return float32_entry(word);
    case FillKind::kHalves:
      return halves_entry(word, rule.narrow);
    case FillKind::kBytes:
      return bytes_entry(word, rule.narrow);
    case FillKind::kPowersOfTwo:
      return powers_of_two_entry(word);
    case FillKind::kNibbles:
      return nibbles_entry(word);
    default:
      return lanes_entry(word, rule.lanes);
  }
}

/// The 8 bytes that two words become.
OPREPLAY_DEVICE uint64_t pair_entry(uint32_t low, uint32_t high, const FillRule& rule) {
  if (rule.kind == FillKind::kIntegers64) return integer64_entry(low, high, rule.low, rule.range);
  if (rule.kind == FillKind::kFloat64) {
    const double value = float64_entry(low, high);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  return word_entry(low, rule) | static_cast<uint64_t>(word_entry(high, rule)) << 32;
}

/// One thread for each pair of words. The last pair may be cut.
OPREPLAY_KERNEL void fill_pairs_kernel(
    unsigned char* out, int64_t bytes, FillRule rule, uint64_t seed, uint64_t stream) {
  const int64_t pairs = (bytes + 7) / 8;
  for (int64_t i = gpu::global_id(); i < pairs; i += gpu::global_size()) {
    const auto first = static_cast<uint64_t>(2 * i);
    const CounterKeys keys = counter_keys(seed, stream, first >> 32);
    const auto index = static_cast<uint32_t>(first);
    const uint64_t value = pair_entry(random_word(index, keys), random_word(index + 1, keys), rule);
    const int64_t rest = bytes - 8 * i;
    store_bytes(out + 8 * i, value, rest < 8 ? rest : 8);
  }
}

/// One thread for each element.
OPREPLAY_KERNEL void fill_scaled_kernel(
    unsigned char* out, int64_t count, FillRule rule, uint64_t seed, uint64_t stream) {
  for (int64_t i = gpu::global_id(); i < count; i += gpu::global_size()) {
    const auto index = static_cast<uint64_t>(i);
    const uint32_t word =
        random_word(static_cast<uint32_t>(index), counter_keys(seed, stream, index >> 32));
    store_bytes(out + i * rule.width,
                scaled_entry(word, rule.low, static_cast<uint32_t>(rule.range)),
                rule.width);
  }
}

}  // namespace

void fill_random_gpu(void* data,
                     int64_t bytes,
                     RandomFormat format,
                     uint64_t seed,
                     uint64_t stream_of_bits,
                     void* stream) {
  gpu::launch(fill_pairs_kernel,
              gpu::blocks_for((bytes + 7) / 8),
              gpu::default_threads(),
              0,
              stream,
              static_cast<unsigned char*>(data),
              bytes,
              float_rule(format),
              seed,
              stream_of_bits);
}

void fill_random_integers_gpu(void* data,
                              int64_t count,
                              int width,
                              uint64_t low,
                              uint64_t range,
                              uint64_t seed,
                              uint64_t stream_of_bits,
                              void* stream) {
  const FillRule rule = integer_rule(width, low, range);
  const bool scaled = rule.kind == FillKind::kScaled;
  const int64_t bytes = count * width;
  gpu::launch(scaled ? fill_scaled_kernel : fill_pairs_kernel,
              gpu::blocks_for(scaled ? count : (bytes + 7) / 8),
              gpu::default_threads(),
              0,
              stream,
              static_cast<unsigned char*>(data),
              scaled ? count : bytes,
              rule,
              seed,
              stream_of_bits);
}

}  // namespace opreplay::kernels
