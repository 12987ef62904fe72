// SPDX-License-Identifier: MIT
//
// The MoE builders as operators, so that C++, Python and graphs call the same thing.
#include <torch/library.h>

#include "opreplay/moe_tables.h"

namespace opreplay {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor undefined_or(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

RoutingOptions routing_options(std::string distribution,
                               double s,
                               double alpha,
                               int64_t hot,
                               const OptionalTensor& histogram,
                               int64_t ranks,
                               int64_t n_group,
                               int64_t topk_group,
                               int64_t shared_experts,
                               std::optional<int64_t> layers,
                               int64_t seed) {
  return {std::move(distribution),
          s,
          alpha,
          hot,
          undefined_or(histogram),
          ranks,
          n_group,
          topk_group,
          shared_experts,
          layers,
          static_cast<uint64_t>(seed)};
}

at::Tensor routing_table_op(int64_t num_tokens,
                            int64_t num_experts,
                            int64_t top_k,
                            std::string distribution,
                            double s,
                            double alpha,
                            int64_t hot,
                            const OptionalTensor& histogram,
                            int64_t ranks,
                            int64_t n_group,
                            int64_t topk_group,
                            int64_t shared_experts,
                            std::optional<int64_t> layers,
                            int64_t seed,
                            std::optional<at::Device> device) {
  const RoutingOptions options = routing_options(std::move(distribution),
                                                 s,
                                                 alpha,
                                                 hot,
                                                 histogram,
                                                 ranks,
                                                 n_group,
                                                 topk_group,
                                                 shared_experts,
                                                 layers,
                                                 seed);
  return routing_table(num_tokens, num_experts, top_k, options, device.value_or(at::kCPU));
}

std::tuple<at::Tensor, at::Tensor> topk_routing_op(int64_t num_tokens,
                                                   int64_t num_experts,
                                                   int64_t top_k,
                                                   std::string distribution,
                                                   double s,
                                                   double alpha,
                                                   int64_t hot,
                                                   const OptionalTensor& histogram,
                                                   int64_t ranks,
                                                   int64_t n_group,
                                                   int64_t topk_group,
                                                   int64_t shared_experts,
                                                   std::optional<int64_t> layers,
                                                   int64_t seed,
                                                   std::optional<at::Device> device) {
  const RoutingOptions options = routing_options(std::move(distribution),
                                                 s,
                                                 alpha,
                                                 hot,
                                                 histogram,
                                                 ranks,
                                                 n_group,
                                                 topk_group,
                                                 shared_experts,
                                                 layers,
                                                 seed);
  Routing out = topk_routing(num_tokens, num_experts, top_k, options, device.value_or(at::kCPU));
  return {out.topk_ids, out.topk_weights};
}

void topk_routing_out_op(int64_t num_experts,
                         int64_t top_k,
                         std::string distribution,
                         double s,
                         double alpha,
                         int64_t hot,
                         const OptionalTensor& histogram,
                         int64_t ranks,
                         int64_t n_group,
                         int64_t topk_group,
                         int64_t shared_experts,
                         std::optional<int64_t> layers,
                         int64_t seed,
                         const OptionalTensor& table,
                         const at::Tensor& topk_ids,
                         const at::Tensor& topk_weights) {
  const RoutingOptions options = routing_options(std::move(distribution),
                                                 s,
                                                 alpha,
                                                 hot,
                                                 histogram,
                                                 ranks,
                                                 n_group,
                                                 topk_group,
                                                 shared_experts,
                                                 layers,
                                                 seed);
  const Routing out{topk_ids, topk_weights};
  if (table) {
    draw_routing_out(out, *table, num_experts, top_k, options);
  } else {
    topk_routing_out(out, num_experts, top_k, options);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> moe_align_block_size_op(
    const at::Tensor& topk_ids,
    int64_t num_experts,
    int64_t block_size,
    const OptionalTensor& expert_map,
    std::string foreign,
    std::optional<int64_t> length,
    int64_t unused_expert) {
  const MoeAlignOptions options{
      undefined_or(expert_map), std::move(foreign), length, unused_expert};
  MoeAlignTable out = moe_align_block_size(topk_ids, num_experts, block_size, options);
  return {out.sorted_token_ids, out.expert_ids, out.num_tokens_post_padded, out.status};
}

void moe_align_block_size_out_op(const at::Tensor& topk_ids,
                                 int64_t num_experts,
                                 int64_t block_size,
                                 const OptionalTensor& expert_map,
                                 std::string foreign,
                                 int64_t unused_expert,
                                 const at::Tensor& sorted_token_ids,
                                 const at::Tensor& expert_ids,
                                 const at::Tensor& num_tokens_post_padded,
                                 const at::Tensor& status) {
  const MoeAlignOptions options{
      undefined_or(expert_map), std::move(foreign), std::nullopt, unused_expert};
  const MoeAlignTable out{sorted_token_ids, expert_ids, num_tokens_post_padded, status};
  moe_align_block_size_out(out, topk_ids, num_experts, block_size, options);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batched_moe_align_block_size_op(
    int64_t max_tokens, int64_t block_size, const at::Tensor& expert_num_tokens) {
  MoeAlignTable out = batched_moe_align_block_size(max_tokens, block_size, expert_num_tokens);
  return {out.sorted_token_ids, out.expert_ids, out.num_tokens_post_padded, out.status};
}

void batched_moe_align_block_size_out_op(int64_t max_tokens,
                                         int64_t block_size,
                                         const at::Tensor& expert_num_tokens,
                                         const at::Tensor& sorted_token_ids,
                                         const at::Tensor& expert_ids,
                                         const at::Tensor& num_tokens_post_padded,
                                         const at::Tensor& status) {
  const MoeAlignTable out{sorted_token_ids, expert_ids, num_tokens_post_padded, status};
  batched_moe_align_block_size_out(out, max_tokens, block_size, expert_num_tokens);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> moe_sorting_op(
    const at::Tensor& topk_ids,
    const at::Tensor& topk_weights,
    int64_t num_experts,
    int64_t block_size,
    const OptionalTensor& expert_mask,
    const OptionalTensor& num_local_tokens,
    std::optional<int64_t> length,
    std::string sentinel,
    int64_t unused_expert) {
  const MoeSortingOptions options{undefined_or(expert_mask),
                                  undefined_or(num_local_tokens),
                                  length,
                                  std::move(sentinel),
                                  unused_expert};
  MoeSortingTable out = moe_sorting(topk_ids, topk_weights, num_experts, block_size, options);
  return {out.sorted_ids, out.sorted_weights, out.sorted_expert_ids, out.num_valid_ids, out.status};
}

void moe_sorting_out_op(const at::Tensor& topk_ids,
                        const at::Tensor& topk_weights,
                        int64_t num_experts,
                        int64_t block_size,
                        const OptionalTensor& expert_mask,
                        const OptionalTensor& num_local_tokens,
                        std::string sentinel,
                        int64_t unused_expert,
                        const at::Tensor& sorted_ids,
                        const at::Tensor& sorted_weights,
                        const at::Tensor& sorted_expert_ids,
                        const at::Tensor& num_valid_ids,
                        const at::Tensor& status) {
  const MoeSortingOptions options{undefined_or(expert_mask),
                                  undefined_or(num_local_tokens),
                                  std::nullopt,
                                  std::move(sentinel),
                                  unused_expert};
  const MoeSortingTable out{sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, status};
  moe_sorting_out(out, topk_ids, topk_weights, num_experts, block_size, options);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
grouped_gemm_op(const at::Tensor& topk_ids,
                int64_t num_experts,
                std::optional<int64_t> n,
                std::optional<int64_t> k,
                int64_t align) {
  GroupedGemm out = grouped_gemm(topk_ids, num_experts, {n, k, align});
  return {out.offsets_inclusive,
          out.offsets_exclusive,
          out.permutation,
          out.inverse,
          out.tokens_per_expert,
          out.problem_sizes,
          out.status};
}

void grouped_gemm_out_op(const at::Tensor& topk_ids,
                         int64_t num_experts,
                         std::optional<int64_t> n,
                         std::optional<int64_t> k,
                         int64_t align,
                         const at::Tensor& offsets_inclusive,
                         const at::Tensor& offsets_exclusive,
                         const at::Tensor& permutation,
                         const at::Tensor& inverse,
                         const at::Tensor& tokens_per_expert,
                         const OptionalTensor& problem_sizes,
                         const at::Tensor& status) {
  const GroupedGemm out{offsets_inclusive,
                        offsets_exclusive,
                        permutation,
                        inverse,
                        tokens_per_expert,
                        undefined_or(problem_sizes),
                        status};
  grouped_gemm_out(out, topk_ids, num_experts, {n, k, align});
}

}  // namespace
}  // namespace opreplay

TORCH_LIBRARY_FRAGMENT(opreplay, m) {
  const std::string routing =
      "*, str distribution='uniform', float s=1.0, float alpha=1.01, int hot=0, "
      "Tensor? histogram=None, int ranks=1, int n_group=1, int topk_group=1, "
      "int shared_experts=0, int? layers=None, int seed=0, ";
  const std::string sizes = "(int num_tokens, int num_experts, int top_k, ";
  m.def(("routing_table" + sizes + routing + "Device? device=None) -> Tensor").c_str());
  m.def(("topk_routing" + sizes + routing +
         "Device? device=None) -> (Tensor topk_ids, Tensor topk_weights)")
            .c_str());
  m.def(("topk_routing.out(int num_experts, int top_k, " + routing +
         "Tensor? table=None, Tensor(a!) topk_ids, Tensor(b!) topk_weights) -> ()")
            .c_str());
  m.def(
      "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, *, "
      "Tensor? expert_map=None, str foreign='drop', int? length=None, int unused_expert=-1) -> "
      "(Tensor sorted_token_ids, Tensor expert_ids, Tensor num_tokens_post_padded, Tensor status)");
  m.def(
      "moe_align_block_size.out(Tensor topk_ids, int num_experts, int block_size, *, "
      "Tensor? expert_map=None, str foreign='drop', int unused_expert=-1, "
      "Tensor(a!) sorted_token_ids, Tensor(b!) expert_ids, Tensor(c!) num_tokens_post_padded, "
      "Tensor(d!) status) -> ()");
  m.def(
      "batched_moe_align_block_size(int max_tokens, int block_size, Tensor expert_num_tokens) -> "
      "(Tensor sorted_token_ids, Tensor expert_ids, Tensor num_tokens_post_padded, Tensor status)");
  m.def(
      "batched_moe_align_block_size.out(int max_tokens, int block_size, Tensor expert_num_tokens, "
      "*, Tensor(a!) sorted_token_ids, Tensor(b!) expert_ids, Tensor(c!) num_tokens_post_padded, "
      "Tensor(d!) status) -> ()");
  m.def(
      "moe_sorting(Tensor topk_ids, Tensor topk_weights, int num_experts, int block_size, *, "
      "Tensor? expert_mask=None, Tensor? num_local_tokens=None, int? length=None, "
      "str sentinel='topk_m', int unused_expert=-1) -> (Tensor sorted_ids, Tensor sorted_weights, "
      "Tensor sorted_expert_ids, Tensor num_valid_ids, Tensor status)");
  m.def(
      "moe_sorting.out(Tensor topk_ids, Tensor topk_weights, int num_experts, int block_size, *, "
      "Tensor? expert_mask=None, Tensor? num_local_tokens=None, str sentinel='topk_m', "
      "int unused_expert=-1, Tensor(a!) sorted_ids, Tensor(b!) sorted_weights, "
      "Tensor(c!) sorted_expert_ids, Tensor(d!) num_valid_ids, Tensor(e!) status) -> ()");
  m.def(
      "grouped_gemm(Tensor topk_ids, int num_experts, *, int? n=None, int? k=None, int align=1) -> "
      "(Tensor offsets_inclusive, Tensor offsets_exclusive, Tensor permutation, Tensor inverse, "
      "Tensor tokens_per_expert, Tensor problem_sizes, Tensor status)");
  m.def(
      "grouped_gemm.out(Tensor topk_ids, int num_experts, *, int? n=None, int? k=None, "
      "int align=1, Tensor(a!) offsets_inclusive, Tensor(b!) offsets_exclusive, "
      "Tensor(c!) permutation, Tensor(d!) inverse, Tensor(e!) tokens_per_expert, "
      "Tensor(f!)? problem_sizes=None, Tensor(g!) status) -> ()");
  m.def("check_moe_status(Tensor status) -> ()");
  m.def("check_batched_status(Tensor status, int max_tokens) -> ()");
}

TORCH_LIBRARY_IMPL(opreplay, CompositeExplicitAutograd, m) {
  m.impl("routing_table", opreplay::routing_table_op);
  m.impl("topk_routing", opreplay::topk_routing_op);
  m.impl("topk_routing.out", opreplay::topk_routing_out_op);
  m.impl("moe_align_block_size", opreplay::moe_align_block_size_op);
  m.impl("moe_align_block_size.out", opreplay::moe_align_block_size_out_op);
  m.impl("batched_moe_align_block_size", opreplay::batched_moe_align_block_size_op);
  m.impl("batched_moe_align_block_size.out", opreplay::batched_moe_align_block_size_out_op);
  m.impl("moe_sorting", opreplay::moe_sorting_op);
  m.impl("moe_sorting.out", opreplay::moe_sorting_out_op);
  m.impl("grouped_gemm", opreplay::grouped_gemm_op);
  m.impl("grouped_gemm.out", opreplay::grouped_gemm_out_op);
  m.impl("check_moe_status", opreplay::check_moe_status);
  m.impl("check_batched_status", opreplay::check_batched_status);
}
