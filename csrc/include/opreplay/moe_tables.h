// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "opreplay/export.h"

namespace opreplay {

/// Who the tokens' experts are. Integers only: the same options give the same bits on every device
/// and for any number of threads.
struct RoutingOptions {
  /// "uniform", "zipf", "hot": drawn per token, one expert after the other without replacement
  /// (Plackett-Luce). "balanced", "histogram", "power_law", "one_hot": every expert gets an exact
  /// number of tokens, scattered over them.
  std::string distribution = "uniform";
  double s = 1.0;          ///< zipf: the load of the r-th hottest expert is proportional to r^-s
  double alpha = 1.01;     ///< power_law: loads have a density proportional to x^-alpha
  int64_t hot = 0;         ///< hot: so many experts take all tokens
  at::Tensor histogram;    ///< histogram: loads [num_experts] or [layers, num_experts], on the CPU
  int64_t ranks = 1;       ///< balanced: counts differ by at most one between ranks, too
  int64_t n_group = 1;     ///< experts fall into groups of neighbours
  int64_t topk_group = 1;  ///< of which a token uses so many
  int64_t shared_experts = 0;     ///< experts num_experts and on, which every token takes, appended
  std::optional<int64_t> layers;  ///< results get a leading dimension; hot experts differ by layer
  uint64_t seed = 0;
};

struct Routing {
  at::Tensor topk_ids;      ///< int32 [(layers,) tokens, top_k + shared_experts], distinct in a row
  at::Tensor topk_weights;  ///< float32, same shape: positive, rows sum to one
};

/// The distribution as a few integers per expert, built on the CPU and copied to `device`. A graph
/// capture needs it made before.
OPREPLAY_API at::Tensor routing_table(int64_t num_tokens,
                                      int64_t num_experts,
                                      int64_t top_k,
                                      const RoutingOptions& options,
                                      at::Device device);

/// Draws into `out`, on its device, from a table made with the same sizes and options. Never
/// synchronises.
OPREPLAY_API void draw_routing_out(const Routing& out,
                                   const at::Tensor& table,
                                   int64_t num_experts,
                                   int64_t top_k,
                                   const RoutingOptions& options);

/// routing_table() and draw_routing_out() in one.
OPREPLAY_API Routing topk_routing(int64_t num_tokens,
                                  int64_t num_experts,
                                  int64_t top_k,
                                  const RoutingOptions& options = {},
                                  at::Device device = at::kCPU);
OPREPLAY_API void topk_routing_out(const Routing& out,
                                   int64_t num_experts,
                                   int64_t top_k,
                                   const RoutingOptions& options = {});

// The tables below take topk_ids int32 (or uint32, int64) [tokens, top_k] and give int32. On the
// CPU a table that does not fit or an id that is none raises at once; on a device `status` says so
// and check_status() raises, which synchronises. A form that ends in _out fills the given buffers,
// whose sizes count.

/// Layout of vLLM and SGLang. An entry is the pair's index token * top_k + slot, padding is the
/// number of pairs.
struct MoeAlignTable {
  at::Tensor sorted_token_ids;        ///< [length]
  at::Tensor expert_ids;              ///< [ceil(length / block_size)]
  at::Tensor num_tokens_post_padded;  ///< [1]
  at::Tensor status;                  ///< [3]: entries too many, ids outside, pairs repeated
};

struct MoeAlignOptions {
  at::Tensor expert_map;  ///< int32 [num_experts]: local id, or -1 for an expert elsewhere
  std::string foreign =
      "drop";  ///< experts elsewhere: "drop" their pairs, or "mark" their blocks -1
  std::optional<int64_t> length;  ///< default: pairs + num_experts * (block_size - 1)
  int64_t unused_expert = -1;     ///< what blocks past the last are called; older engines have 0
};

OPREPLAY_API MoeAlignTable moe_align_block_size(const at::Tensor& topk_ids,
                                                int64_t num_experts,
                                                int64_t block_size,
                                                const MoeAlignOptions& options = {});
OPREPLAY_API void moe_align_block_size_out(const MoeAlignTable& out,
                                           const at::Tensor& topk_ids,
                                           int64_t num_experts,
                                           int64_t block_size,
                                           const MoeAlignOptions& options = {});

/// The same for batched experts: an entry is expert * max_tokens + i. `status`: entries too many,
/// experts whose number of tokens is outside [0, max_tokens].
OPREPLAY_API MoeAlignTable batched_moe_align_block_size(int64_t max_tokens,
                                                        int64_t block_size,
                                                        const at::Tensor& expert_num_tokens);
OPREPLAY_API void batched_moe_align_block_size_out(const MoeAlignTable& out,
                                                   int64_t max_tokens,
                                                   int64_t block_size,
                                                   const at::Tensor& expert_num_tokens);

/// Layout of aiter and CK. An entry is slot << 24 | token.
struct MoeSortingTable {
  at::Tensor sorted_ids;         ///< [length]
  at::Tensor sorted_weights;     ///< float32 [length], 0 in padding
  at::Tensor sorted_expert_ids;  ///< [ceil(length / block_size)]
  at::Tensor num_valid_ids;      ///< [2]: padded total, tokens; older versions have only the first
  at::Tensor status;             ///< [3]: entries too many, ids outside, pairs repeated
};

struct MoeSortingOptions {
  at::Tensor expert_mask;         ///< int32 [experts of all ranks]: nonzero for those here
  at::Tensor num_local_tokens;    ///< int32 [1]: only the first so many rows count
  std::optional<int64_t> length;  ///< default: pairs + num_experts * block_size - top_k
  std::string sentinel =
      "topk_m";                ///< padding: "topk_m" is top_k << 24 | tokens, "m" is tokens alone
  int64_t unused_expert = -1;  ///< what blocks past the last are called
};

OPREPLAY_API MoeSortingTable moe_sorting(const at::Tensor& topk_ids,
                                         const at::Tensor& topk_weights,
                                         int64_t num_experts,
                                         int64_t block_size,
                                         const MoeSortingOptions& options = {});
OPREPLAY_API void moe_sorting_out(const MoeSortingTable& out,
                                  const at::Tensor& topk_ids,
                                  const at::Tensor& topk_weights,
                                  int64_t num_experts,
                                  int64_t block_size,
                                  const MoeSortingOptions& options = {});

/// What a grouped GEMM and its permutation kernels need.
struct GroupedGemm {
  at::Tensor offsets_inclusive;  ///< [num_experts]: end of each expert's rows, padded to `align`
  at::Tensor offsets_exclusive;  ///< [num_experts + 1]: start of each expert's rows, and the total
  at::Tensor permutation;        ///< [pairs + num_experts * (align - 1)]: pair of each row
  at::Tensor inverse;            ///< [tokens, top_k]: row of each pair
  at::Tensor tokens_per_expert;  ///< [num_experts]
  at::Tensor problem_sizes;      ///< [num_experts, 3]: tokens, n, k; undefined without n and k
  at::Tensor status;             ///< [3]
};

struct GroupedGemmOptions {
  std::optional<int64_t> n;
  std::optional<int64_t> k;
  int64_t align =
      1;  ///< rows of an expert are padded to a multiple; padding is the number of pairs
};

OPREPLAY_API GroupedGemm grouped_gemm(const at::Tensor& topk_ids,
                                      int64_t num_experts,
                                      const GroupedGemmOptions& options = {});
OPREPLAY_API void grouped_gemm_out(const GroupedGemm& out,
                                   const at::Tensor& topk_ids,
                                   int64_t num_experts,
                                   const GroupedGemmOptions& options = {});

/// Raises c10::ValueError if the status of a sorted table is not all zero. Synchronises on a
/// device.
OPREPLAY_API void check_moe_status(const at::Tensor& status);

/// The same for the status of a batched table.
OPREPLAY_API void check_batched_status(const at::Tensor& status, int64_t max_tokens);

}  // namespace opreplay
