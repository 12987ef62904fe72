// SPDX-License-Identifier: MIT
//
// What the sort writes, entry by entry: the words that the CPU twin and the kernels must agree on.
#pragma once

#include <cstdint>

#include "kernels/gpu.h"
#include "kernels/moe_sort.h"

namespace opreplay::kernels {

inline constexpr int32_t kSlotShift =
    24;  ///< a packed entry holds the slot above the token's 24 bits

OPREPLAY_HOST_DEVICE int32_t packed_entry(int64_t token, int32_t slot) {
  return static_cast<int32_t>(static_cast<uint32_t>(slot) << kSlotShift |
                              static_cast<uint32_t>(token));
}

OPREPLAY_HOST_DEVICE bool is_packed(PairFormat format) { return format != PairFormat::kFlat; }

/// Tokens that take part: all, or as many as the rank holds.
OPREPLAY_HOST_DEVICE int64_t sorted_tokens(const MoeSortInput& in) {
  if (in.num_local_tokens == nullptr) return in.tokens;
  const int64_t local = *in.num_local_tokens;
  return local < 0 ? 0 : (local < in.tokens ? local : in.tokens);
}

OPREPLAY_HOST_DEVICE int32_t padding_entry(const MoeSortInput& in, int64_t tokens) {
  if (in.format == PairFormat::kFlat) return static_cast<int32_t>(in.tokens * in.top_k);
  return packed_entry(tokens, in.format == PairFormat::kPacked ? in.top_k : 0);
}

/// What a block of `bin` is called in `block_experts`.
OPREPLAY_HOST_DEVICE int32_t block_name(const MoeSortInput& in, int32_t bin) {
  return in.table == ExpertTable::kLabel ? in.expert_table[bin] : bin;
}

/// What a block past the last valid one is called. Engines that rename experts after the sort
/// rename the zeros of the unused blocks too.
OPREPLAY_HOST_DEVICE int32_t unused_block_name(const MoeSortInput& in) {
  return in.unused_expert < 0 || in.unused_expert >= in.num_experts
             ? in.unused_expert
             : block_name(in, in.unused_expert);
}

OPREPLAY_HOST_DEVICE int32_t round_up(int32_t value, int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Entries by which a table of `total` padded entries does not fit the buffers.
OPREPLAY_HOST_DEVICE int32_t excess_entries(const MoeSortInput& in,
                                            const MoeSortOutput& out,
                                            int32_t total) {
  int64_t room = total;
  if (out.sorted_ids != nullptr && out.length < room) room = out.length;
  if (out.block_experts != nullptr && out.num_blocks * in.block_size < room) {
    room = out.num_blocks * in.block_size;
  }
  return total - static_cast<int32_t>(room);
}

/// Everything that is known of an expert once its pairs are counted.
OPREPLAY_HOST_DEVICE void write_expert(
    const MoeSortOutput& out, int32_t bin, int32_t count, int32_t start, int32_t padded) {
  if (out.counts != nullptr) out.counts[bin] = count;
  if (out.ends != nullptr) out.ends[bin] = start + padded;
  if (out.starts != nullptr && bin < out.num_starts) out.starts[bin] = start;
  if (out.problem_sizes != nullptr) {
    out.problem_sizes[3 * bin] = count;
    out.problem_sizes[3 * bin + 1] = out.problem_n;
    out.problem_sizes[3 * bin + 2] = out.problem_k;
  }
}

/// Everything that is known of the whole table once its pairs are counted.
OPREPLAY_HOST_DEVICE void write_totals(const MoeSortInput& in,
                                       const MoeSortOutput& out,
                                       int32_t total,
                                       int64_t tokens,
                                       int32_t outside) {
  if (out.num_valid != nullptr) {
    out.num_valid[0] = total;
    if (out.num_valid_entries > 1) out.num_valid[1] = static_cast<int32_t>(tokens);
  }
  if (out.starts != nullptr && out.num_starts > in.num_experts) out.starts[in.num_experts] = total;
  out.status[kStatusTooLong] = excess_entries(in, out, total);
  out.status[kStatusOutside] = outside;
}

}  // namespace opreplay::kernels
