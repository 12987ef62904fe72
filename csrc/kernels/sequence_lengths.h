// SPDX-License-Identifier: MIT
//
// Lengths of sequences, drawn from a distribution or made to match given totals. Integer
// arithmetic only, each length by itself, so that every device gives the same.
#pragma once

#include <cstdint>

#include "kernels/block_permutation.h"
#include "kernels/counter_random.h"
#include "kernels/gpu.h"
#include "kernels/parallel.h"

namespace opreplay::kernels {

/// Lengths drawn one by one. The domain [low, high] is cut into buckets; a bucket is chosen by 32
/// random bits, a length inside it, uniformly, by 32 more.
struct LengthDraw {
  /// Enough for lengths up to 2^31 with single ones up to 32 and 16 buckets per octave above.
  static constexpr int kMaxBuckets = 448;
  int32_t buckets;
  uint32_t upper_bits[kMaxBuckets];   ///< highest random value of each bucket, the last all ones
  int32_t first_length[kMaxBuckets];  ///< lowest length of each bucket
  int32_t last_length;                ///< highest length of the last bucket
  int32_t maximum;                    ///< one sequence gets this length; 0: none does
  uint64_t seed;
  BlockPermutation order;  ///< says which
};

/// Lengths on a ramp, clamped at both ends, in random order: sequence i has the rank p(i), and the
/// ranks ascend in length.
struct LengthRamp {
  int64_t start;  ///< in 1/65536 tokens
  int64_t slope;  ///< in 1/65536 tokens per half rank, from the middle rank
  int64_t low;
  int64_t high;
  int64_t ranks;       ///< sequences on the ramp
  int64_t bump_begin;  ///< ranks [bump_begin, bump_end) are one token longer
  int64_t bump_end;
  int64_t maximum;  ///< length of the rank after the ramp, if there is one
  BlockPermutation order;
};

/// Length of a rank.
OPREPLAY_HOST_DEVICE int64_t ramp_length(int64_t rank, const LengthRamp& ramp) {
  if (rank >= ramp.ranks) return ramp.maximum;
  int64_t length = (ramp.start + ramp.slope * (2 * rank - (ramp.ranks - 1))) >> 16;
  length = length < ramp.low ? ramp.low : (length > ramp.high ? ramp.high : length);
  return length + (rank >= ramp.bump_begin && rank < ramp.bump_end ? 1 : 0);
}

OPREPLAY_HOST_DEVICE int32_t ramp_length_of(int64_t sequence, const LengthRamp& ramp) {
  return static_cast<int32_t>(
      ramp_length(permute(static_cast<uint32_t>(sequence), ramp.order), ramp));
}

OPREPLAY_HOST_DEVICE int32_t drawn_length(int64_t sequence, const LengthDraw& draw) {
  const auto index = static_cast<uint32_t>(sequence);
  if (draw.maximum > 0 && permute(index, draw.order) == 0) return draw.maximum;
  const CounterKeys choose = counter_keys(draw.seed, 0x6c656e67746873);  // "lengths"
  const CounterKeys inside = counter_keys(draw.seed, 0x6c656e67746874);
  const uint32_t random = mix(index, choose.k1, choose.k2);
  int32_t bucket = 0;
  for (int32_t step = 256; step > 0; step /= 2) {
    const int32_t next = bucket + step;
    if (next < draw.buckets && draw.upper_bits[next - 1] < random) bucket = next;
  }
  const int64_t first = draw.first_length[bucket];
  const int64_t end = bucket + 1 < draw.buckets ? draw.first_length[bucket + 1]
                                                : static_cast<int64_t>(draw.last_length) + 1;
  return static_cast<int32_t>(
      first + below(mix(index, inside.k1, inside.k2), static_cast<uint32_t>(end - first)));
}

void draw_lengths_cpu(int32_t* lengths,
                      int64_t count,
                      const LengthDraw& draw,
                      const ParallelFor& parallel_for);
void draw_lengths_gpu(int32_t* lengths, int64_t count, const LengthDraw& draw, void* stream);

void ramp_lengths_cpu(int32_t* lengths,
                      int64_t count,
                      const LengthRamp& ramp,
                      const ParallelFor& parallel_for);
void ramp_lengths_gpu(int32_t* lengths, int64_t count, const LengthRamp& ramp, void* stream);

}  // namespace opreplay::kernels
