// SPDX-License-Identifier: MIT
#include "opreplay/moe_tables.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/moe_batched.h"
#include "kernels/moe_sort.h"
#include "table_builders.h"

namespace opreplay {
namespace {

constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPackedTokens = (1 << 24) - 1;
constexpr int64_t kMaxPackedSlots = 255;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t* ints(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<int32_t>() : nullptr;
}

at::Tensor empty_ints(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, at::TensorOptions(at::kInt).device(like.device()));
}

void check_sizes(int64_t num_experts, int64_t block_size) {
  check_at_least("num_experts", num_experts, 1);
  check_at_most("num_experts", num_experts, 1 << 24);
  check_at_least("block_size", block_size, 1);
  check_at_most("block_size", block_size, 1 << 24);
}

/// Most entries that the table can have, which must be an int32.
void check_entries(const at::Tensor& topk_ids, int64_t num_experts, int64_t block_size) {
  check_at_most("topk_ids.numel() + num_experts * (block_size - 1)",
                topk_ids.numel() + num_experts * (block_size - 1),
                kMaxEntries);
}

/// topk_ids as int32 [tokens, top_k], contiguous. An int64 id that no int32 can name is no expert
/// either.
at::Tensor plain_ids(const at::Tensor& topk_ids) {
  check_table_device(topk_ids.device());
  TORCH_CHECK_VALUE(topk_ids.dim() == 2 && topk_ids.size(1) >= 1,
                    "expected topk_ids of sizes [tokens, top_k], got ",
                    topk_ids.sizes());
  switch (topk_ids.scalar_type()) {
    case at::kInt:
      return topk_ids.contiguous();
    case at::kUInt32:
      return topk_ids.contiguous().view(at::kInt);
    case at::kLong:
      return at::clamp(topk_ids, -1, kMaxEntries).to(at::kInt).contiguous();
    default:
      TORCH_CHECK_TYPE(
          false, "expected topk_ids of dtype int32, int64 or uint32, got ", topk_ids.scalar_type());
  }
}

void check_vector(const char* name, const at::Tensor& tensor, const at::Tensor& topk_ids) {
  check_buffer(name, tensor, at::kInt, topk_ids.device());
  TORCH_CHECK_VALUE(
      tensor.dim() == 1, "expected ", name, " of one dimension, got sizes ", tensor.sizes());
}

void check_length(const char* name, const at::Tensor& tensor, int64_t least) {
  TORCH_CHECK_VALUE(tensor.numel() >= least,
                    "expected ",
                    name,
                    " of at least ",
                    least,
                    " entries, got ",
                    tensor.numel());
}

kernels::MoeSortInput sort_input(const at::Tensor& ids, int64_t num_experts, int64_t block_size) {
  kernels::MoeSortInput in{};
  in.topk_ids = ids.const_data_ptr<int32_t>();
  in.tokens = ids.size(0);
  in.top_k = static_cast<int32_t>(ids.size(1));
  in.num_experts = static_cast<int32_t>(num_experts);
  in.block_size = static_cast<int32_t>(block_size);
  in.unused_expert = -1;
  in.table = kernels::ExpertTable::kNone;
  in.format = kernels::PairFormat::kFlat;
  return in;
}

/// Ids outside are an error, or, where the engine's kernel ignores them, not worth a word.
enum class Outside { kRefused, kIgnored };

void sort(const kernels::MoeSortInput& in,
          const kernels::MoeSortOutput& out,
          const at::Tensor& ids,
          const at::Tensor& status,
          Outside outside) {
  const at::Device device = ids.device();
  if (device.is_cpu()) {
    at::Tensor workspace = empty_ints({kernels::moe_sort_workspace_cpu(in)}, ids);
    kernels::moe_sort_cpu(in, out, ints(workspace), at_parallel_for);
    if (outside == Outside::kIgnored) ints(status)[kernels::kStatusOutside] = 0;
    check_moe_status(status);
    return;
  }
  const c10::DeviceGuard guard(device);
  at::Tensor workspace = empty_ints({kernels::moe_sort_workspace_gpu(in)}, ids);
  kernels::moe_sort_gpu(in, out, ints(workspace), current_stream(device));
  if (outside == Outside::kIgnored) status[kernels::kStatusOutside].zero_();
}

}  // namespace

void check_moe_status(const at::Tensor& status) {
  const at::Tensor host = status.to(at::kCPU);
  const int32_t* values = host.const_data_ptr<int32_t>();
  TORCH_CHECK_VALUE(
      values[kernels::kStatusTooLong] == 0,
      "the table has ",
      values[kernels::kStatusTooLong],
      " entries more than its buffers hold; give longer ones, or route to fewer experts");
  TORCH_CHECK_VALUE(values[kernels::kStatusOutside] == 0,
                    values[kernels::kStatusOutside],
                    " expert ids are outside [0, num_experts)");
  TORCH_CHECK_VALUE(values[kernels::kStatusRepeated] == 0,
                    values[kernels::kStatusRepeated],
                    " pairs repeat an expert that their token has already: this layout keeps one "
                    "slot for each token and expert");
}

MoeAlignTable moe_align_block_size(const at::Tensor& topk_ids,
                                   int64_t num_experts,
                                   int64_t block_size,
                                   const MoeAlignOptions& options) {
  check_sizes(num_experts, block_size);
  check_entries(topk_ids, num_experts, block_size);
  const int64_t length = options.length.value_or(topk_ids.numel() + num_experts * (block_size - 1));
  check_at_least("length", length, 0);
  const MoeAlignTable out{empty_ints({length}, topk_ids),
                          empty_ints({ceil_div(length, block_size)}, topk_ids),
                          empty_ints({1}, topk_ids),
                          empty_ints({kernels::kMoeSortStatus}, topk_ids)};
  moe_align_block_size_out(out, topk_ids, num_experts, block_size, options);
  return out;
}

void moe_align_block_size_out(const MoeAlignTable& out,
                              const at::Tensor& topk_ids,
                              int64_t num_experts,
                              int64_t block_size,
                              const MoeAlignOptions& options) {
  check_sizes(num_experts, block_size);
  const at::Tensor ids = plain_ids(topk_ids);
  check_entries(ids, num_experts, block_size);
  check_vector("sorted_token_ids", out.sorted_token_ids, ids);
  check_vector("expert_ids", out.expert_ids, ids);
  check_vector("num_tokens_post_padded", out.num_tokens_post_padded, ids);
  check_vector("status", out.status, ids);
  check_length("num_tokens_post_padded", out.num_tokens_post_padded, 1);
  check_length("status", out.status, kernels::kMoeSortStatus);
  TORCH_CHECK_VALUE(options.foreign == "drop" || options.foreign == "mark",
                    "expected foreign 'drop' or 'mark', got '",
                    options.foreign,
                    "'");
  kernels::MoeSortInput in = sort_input(ids, num_experts, block_size);
  in.unused_expert = static_cast<int32_t>(options.unused_expert);
  if (options.expert_map.defined()) {
    check_vector("expert_map", options.expert_map, ids);
    TORCH_CHECK_VALUE(options.expert_map.numel() == num_experts,
                      "expected expert_map of num_experts = ",
                      num_experts,
                      " entries, got ",
                      options.expert_map.numel());
    in.expert_table = ints(options.expert_map);
    in.table =
        options.foreign == "drop" ? kernels::ExpertTable::kMap : kernels::ExpertTable::kLabel;
  }
  kernels::MoeSortOutput result{};
  result.sorted_ids = ints(out.sorted_token_ids);
  result.length = out.sorted_token_ids.numel();
  result.block_experts = ints(out.expert_ids);
  result.num_blocks = out.expert_ids.numel();
  result.num_valid = ints(out.num_tokens_post_padded);
  result.num_valid_entries = 1;
  result.status = ints(out.status);
  sort(in, result, ids, out.status, Outside::kIgnored);
}

MoeAlignTable batched_moe_align_block_size(int64_t max_tokens,
                                           int64_t block_size,
                                           const at::Tensor& expert_num_tokens) {
  check_at_least("block_size", block_size, 1);
  check_at_least("max_tokens", max_tokens, 0);
  const int64_t blocks = expert_num_tokens.numel() * ceil_div(max_tokens, block_size);
  check_at_most("entries of the table", blocks * block_size, kMaxEntries);
  const MoeAlignTable out{empty_ints({blocks * block_size}, expert_num_tokens),
                          empty_ints({blocks}, expert_num_tokens),
                          empty_ints({1}, expert_num_tokens),
                          empty_ints({kernels::kMoeBatchedStatus}, expert_num_tokens)};
  batched_moe_align_block_size_out(out, max_tokens, block_size, expert_num_tokens);
  return out;
}

void batched_moe_align_block_size_out(const MoeAlignTable& out,
                                      int64_t max_tokens,
                                      int64_t block_size,
                                      const at::Tensor& expert_num_tokens) {
  const at::Device device = expert_num_tokens.device();
  check_table_device(device);
  check_sizes(std::max<int64_t>(1, expert_num_tokens.numel()), block_size);
  check_at_least("max_tokens", max_tokens, 0);
  check_vector("expert_num_tokens", expert_num_tokens, expert_num_tokens);
  check_vector("sorted_token_ids", out.sorted_token_ids, expert_num_tokens);
  check_vector("expert_ids", out.expert_ids, expert_num_tokens);
  check_vector("num_tokens_post_padded", out.num_tokens_post_padded, expert_num_tokens);
  check_vector("status", out.status, expert_num_tokens);
  check_length("num_tokens_post_padded", out.num_tokens_post_padded, 1);
  check_length("status", out.status, kernels::kMoeBatchedStatus);
  check_at_most("num_experts * max_tokens padded to blocks",
                expert_num_tokens.numel() * ceil_div(max_tokens, block_size) * block_size,
                kMaxEntries);
  const kernels::MoeBatchedInput in{ints(expert_num_tokens),
                                    static_cast<int32_t>(expert_num_tokens.numel()),
                                    static_cast<int32_t>(max_tokens),
                                    static_cast<int32_t>(block_size)};
  const kernels::MoeBatchedOutput result{ints(out.sorted_token_ids),
                                         ints(out.expert_ids),
                                         ints(out.num_tokens_post_padded),
                                         ints(out.status),
                                         out.sorted_token_ids.numel(),
                                         out.expert_ids.numel()};
  at::Tensor workspace = empty_ints({kernels::moe_batched_workspace(in)}, expert_num_tokens);
  if (!device.is_cpu()) {
    const c10::DeviceGuard guard(device);
    kernels::moe_batched_gpu(in, result, ints(workspace), current_stream(device));
    return;
  }
  kernels::moe_batched_cpu(in, result, ints(workspace), at_parallel_for);
  check_batched_status(out.status, max_tokens);
}

void check_batched_status(const at::Tensor& status, int64_t max_tokens) {
  const at::Tensor host = status.to(at::kCPU);
  const int32_t* values = host.const_data_ptr<int32_t>();
  TORCH_CHECK_VALUE(values[kernels::kBatchedOutside] == 0,
                    values[kernels::kBatchedOutside],
                    " experts have a number of tokens outside [0, max_tokens = ",
                    max_tokens,
                    "]");
  TORCH_CHECK_VALUE(values[kernels::kBatchedTooLong] == 0,
                    "the table has ",
                    values[kernels::kBatchedTooLong],
                    " entries more than its buffers hold");
}

MoeSortingTable moe_sorting(const at::Tensor& topk_ids,
                            const at::Tensor& topk_weights,
                            int64_t num_experts,
                            int64_t block_size,
                            const MoeSortingOptions& options) {
  check_sizes(num_experts, block_size);
  check_entries(topk_ids, num_experts, block_size);
  const int64_t top_k = topk_ids.dim() == 2 ? topk_ids.size(1) : 0;
  const int64_t length = options.length.value_or(
      std::max<int64_t>(0, topk_ids.numel() + num_experts * block_size - top_k));
  check_at_least("length", length, 0);
  const MoeSortingTable out{
      empty_ints({length}, topk_ids),
      at::empty({length}, at::TensorOptions(at::kFloat).device(topk_ids.device())),
      empty_ints({ceil_div(length, block_size)}, topk_ids),
      empty_ints({2}, topk_ids),
      empty_ints({kernels::kMoeSortStatus}, topk_ids)};
  moe_sorting_out(out, topk_ids, topk_weights, num_experts, block_size, options);
  return out;
}

void moe_sorting_out(const MoeSortingTable& out,
                     const at::Tensor& topk_ids,
                     const at::Tensor& topk_weights,
                     int64_t num_experts,
                     int64_t block_size,
                     const MoeSortingOptions& options) {
  check_sizes(num_experts, block_size);
  const at::Tensor ids = plain_ids(topk_ids);
  check_at_most("tokens of the packed layout", ids.size(0), kMaxPackedTokens);
  check_at_most("top_k of the packed layout", ids.size(1), kMaxPackedSlots);
  check_buffer("topk_weights", topk_weights, at::kFloat, ids.device());
  TORCH_CHECK_VALUE(topk_weights.sizes() == ids.sizes(),
                    "expected topk_weights of the sizes of topk_ids, ",
                    ids.sizes(),
                    ", got ",
                    topk_weights.sizes());
  check_vector("sorted_ids", out.sorted_ids, ids);
  check_buffer("sorted_weights", out.sorted_weights, at::kFloat, ids.device());
  TORCH_CHECK_VALUE(out.sorted_weights.sizes() == out.sorted_ids.sizes(),
                    "expected sorted_weights of the sizes of sorted_ids, ",
                    out.sorted_ids.sizes(),
                    ", got ",
                    out.sorted_weights.sizes());
  check_vector("sorted_expert_ids", out.sorted_expert_ids, ids);
  check_vector("num_valid_ids", out.num_valid_ids, ids);
  check_vector("status", out.status, ids);
  check_length("num_valid_ids", out.num_valid_ids, 1);
  check_length("status", out.status, kernels::kMoeSortStatus);
  TORCH_CHECK_VALUE(options.sentinel == "topk_m" || options.sentinel == "m",
                    "expected sentinel 'topk_m' or 'm', got '",
                    options.sentinel,
                    "'");
  int64_t known_experts = num_experts;
  if (options.expert_mask.defined()) {
    check_vector("expert_mask", options.expert_mask, ids);
    check_length("expert_mask", options.expert_mask, num_experts);
    known_experts = options.expert_mask.numel();
  }
  check_entries(ids, known_experts, block_size);
  kernels::MoeSortInput in = sort_input(ids, known_experts, block_size);
  if (options.expert_mask.defined()) {
    in.expert_table = ints(options.expert_mask);
    in.table = kernels::ExpertTable::kMask;
  }
  if (options.num_local_tokens.defined()) {
    check_vector("num_local_tokens", options.num_local_tokens, ids);
    check_length("num_local_tokens", options.num_local_tokens, 1);
    in.num_local_tokens = ints(options.num_local_tokens);
  }
  in.topk_weights = topk_weights.const_data_ptr<float>();
  in.unused_expert = static_cast<int32_t>(options.unused_expert);
  in.format = options.sentinel == "topk_m" ? kernels::PairFormat::kPacked
                                           : kernels::PairFormat::kPackedPlainPadding;
  kernels::MoeSortOutput result{};
  result.sorted_ids = ints(out.sorted_ids);
  result.sorted_weights = out.sorted_weights.mutable_data_ptr<float>();
  result.length = out.sorted_ids.numel();
  result.block_experts = ints(out.sorted_expert_ids);
  result.num_blocks = out.sorted_expert_ids.numel();
  result.num_valid = ints(out.num_valid_ids);
  result.num_valid_entries = static_cast<int32_t>(std::min<int64_t>(2, out.num_valid_ids.numel()));
  result.status = ints(out.status);
  sort(in, result, ids, out.status, Outside::kRefused);
}

GroupedGemm grouped_gemm(const at::Tensor& topk_ids,
                         int64_t num_experts,
                         const GroupedGemmOptions& options) {
  check_sizes(num_experts, options.align);
  check_entries(topk_ids, num_experts, options.align);
  const int64_t rows = topk_ids.numel() + num_experts * (options.align - 1);
  GroupedGemm out{empty_ints({num_experts}, topk_ids),
                  empty_ints({num_experts + 1}, topk_ids),
                  empty_ints({rows}, topk_ids),
                  empty_ints(topk_ids.sizes(), topk_ids),
                  empty_ints({num_experts}, topk_ids),
                  at::Tensor(),
                  empty_ints({kernels::kMoeSortStatus}, topk_ids)};
  if (options.n && options.k) out.problem_sizes = empty_ints({num_experts, 3}, topk_ids);
  grouped_gemm_out(out, topk_ids, num_experts, options);
  return out;
}

void grouped_gemm_out(const GroupedGemm& out,
                      const at::Tensor& topk_ids,
                      int64_t num_experts,
                      const GroupedGemmOptions& options) {
  check_sizes(num_experts, options.align);
  const at::Tensor ids = plain_ids(topk_ids);
  check_entries(ids, num_experts, options.align);
  check_vector("offsets_inclusive", out.offsets_inclusive, ids);
  check_vector("offsets_exclusive", out.offsets_exclusive, ids);
  check_vector("permutation", out.permutation, ids);
  check_buffer("inverse", out.inverse, at::kInt, ids.device());
  check_vector("tokens_per_expert", out.tokens_per_expert, ids);
  check_vector("status", out.status, ids);
  check_length("offsets_inclusive", out.offsets_inclusive, num_experts);
  check_length("offsets_exclusive", out.offsets_exclusive, num_experts);
  check_length("inverse", out.inverse, ids.numel());
  check_length("tokens_per_expert", out.tokens_per_expert, num_experts);
  check_length("status", out.status, kernels::kMoeSortStatus);
  TORCH_CHECK_VALUE(options.n.has_value() == options.k.has_value(),
                    "problem sizes need both n and k, got only ",
                    options.n ? "n" : "k");
  kernels::MoeSortOutput result{};
  if (out.problem_sizes.defined()) {
    TORCH_CHECK_VALUE(options.n && options.k, "problem_sizes need n and k, got neither");
    check_buffer("problem_sizes", out.problem_sizes, at::kInt, ids.device());
    check_length("problem_sizes", out.problem_sizes, 3 * num_experts);
    check_at_most("n", *options.n, kMaxEntries);
    check_at_most("k", *options.k, kMaxEntries);
    result.problem_n = static_cast<int32_t>(*options.n);
    result.problem_k = static_cast<int32_t>(*options.k);
  }
  result.sorted_ids = ints(out.permutation);
  result.length = out.permutation.numel();
  result.inverse = ints(out.inverse);
  result.counts = ints(out.tokens_per_expert);
  result.ends = ints(out.offsets_inclusive);
  result.starts = ints(out.offsets_exclusive);
  result.num_starts = static_cast<int32_t>(out.offsets_exclusive.numel());
  result.problem_sizes = ints(out.problem_sizes);
  result.status = ints(out.status);
  sort(sort_input(ids, num_experts, options.align), result, ids, out.status, Outside::kRefused);
}

}  // namespace opreplay
