// SPDX-License-Identifier: MIT
//
// Sorts (token, expert) pairs by expert, stably, and pads each expert to whole blocks. The layouts
// of vLLM, SGLang, aiter and of a grouped GEMM are this one sort with different words for a pair
// and different companions, so that one kernel and one CPU twin serve all three.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace opreplay::kernels {

/// How a sorted entry names its pair.
enum class PairFormat : int32_t {
  kFlat,                ///< token * top_k + slot; padding is tokens * top_k
  kPacked,              ///< slot << 24 | token; padding is top_k << 24 | valid tokens
  kPackedPlainPadding,  ///< slot << 24 | token; padding is valid tokens alone
};

/// What `expert_table` says about an expert id.
enum class ExpertTable : int32_t {
  kNone,   ///< no table: an expert is its own bin
  kMap,    ///< the local id, or negative: its pairs are dropped
  kMask,   ///< nonzero: local, numbered by a running count; zero: its pairs are dropped
  kLabel,  ///< sorts by the id as it is; the table gives what a block of it is called
};

struct MoeSortInput {
  const int32_t* topk_ids;          ///< [tokens, top_k]
  const float* topk_weights;        ///< [tokens, top_k], or null
  const int32_t* num_local_tokens;  ///< [1]: only so many tokens are sorted; or null
  const int32_t* expert_table;      ///< [num_experts], or null
  int64_t tokens;
  int32_t top_k;
  int32_t num_experts;  ///< ids outside [0, num_experts) are dropped and counted
  int32_t block_size;
  int32_t unused_expert;  ///< name of the blocks past the last valid one
  ExpertTable table;
  PairFormat format;
};

/// Any pointer but `status` may be null: that output is not written.
struct MoeSortOutput {
  int32_t* sorted_ids;     ///< [length]
  float* sorted_weights;   ///< [length], 0 in padding
  int32_t* block_experts;  ///< [num_blocks]
  int32_t* num_valid;      ///< [num_valid_entries]: padded total, tokens sorted
  int32_t* inverse;        ///< [tokens, top_k]: where a pair went, -1 if it was dropped
  int32_t* counts;         ///< [num_experts]
  int32_t* ends;           ///< [num_experts]: inclusive
  int32_t* starts;         ///< [num_starts]: exclusive, and the total if there is room for it
  int32_t* problem_sizes;  ///< [num_experts, 3]: count, n, k
  int32_t* status;         ///< [kMoeSortStatus]
  int64_t length;
  int64_t num_blocks;
  int32_t num_valid_entries;
  int32_t num_starts;
  int32_t problem_n;
  int32_t problem_k;
};

/// Entries of `status`: all zero when the table is good.
inline constexpr int32_t kMoeSortStatus = 3;
inline constexpr int32_t kStatusTooLong =
    0;  ///< entries (or blocks) by which the table does not fit
inline constexpr int32_t kStatusOutside = 1;  ///< ids outside [0, num_experts)
inline constexpr int32_t kStatusRepeated =
    2;  ///< pairs whose token has the expert already (packed formats)

/// int32 entries of scratch memory that a sort needs.
int64_t moe_sort_workspace_cpu(const MoeSortInput& in);
int64_t moe_sort_workspace_gpu(const MoeSortInput& in);

/// A table that does not fit leaves `sorted_ids` undefined and says so in `status`; nothing is
/// written past the ends.
void moe_sort_cpu(const MoeSortInput& in,
                  const MoeSortOutput& out,
                  int32_t* workspace,
                  const ParallelFor& parallel_for);
void moe_sort_gpu(const MoeSortInput& in,
                  const MoeSortOutput& out,
                  int32_t* workspace,
                  void* stream);

}  // namespace opreplay::kernels
