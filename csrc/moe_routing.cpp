// SPDX-License-Identifier: MIT
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "expert_load.h"
#include "kernels/moe_routing.h"
#include "opreplay/moe_tables.h"
#include "table_builders.h"

namespace opreplay {
namespace {

constexpr int64_t kMaxGroups = 64;
constexpr int64_t kMaxPairs = std::numeric_limits<int32_t>::max();

constexpr std::array kDrawn = {"uniform", "zipf", "hot"};
constexpr std::array kCounted = {"balanced", "histogram", "power_law", "one_hot"};

bool is_drawn(const std::string& distribution) {
  return std::find(kDrawn.begin(), kDrawn.end(), distribution) != kDrawn.end();
}

bool is_counted(const std::string& distribution) {
  return std::find(kCounted.begin(), kCounted.end(), distribution) != kCounted.end();
}

int64_t table_width(int64_t num_experts, const RoutingOptions& options) {
  return is_counted(options.distribution) ? 2 * num_experts + 1 : 3 * num_experts + options.n_group;
}

void check_options(int64_t num_tokens,
                   int64_t num_experts,
                   int64_t top_k,
                   const RoutingOptions& options) {
  check_at_least("num_tokens", num_tokens, 0);
  check_at_least("num_experts", num_experts, 1);
  check_at_most("num_experts", num_experts, 1 << 24);
  check_at_least("top_k", top_k, 1);
  TORCH_CHECK_VALUE(top_k <= num_experts,
                    "a token takes distinct experts: expected top_k <= num_experts = ",
                    num_experts,
                    ", got ",
                    top_k);
  check_at_least("shared_experts", options.shared_experts, 0);
  check_at_most("num_tokens * (top_k + shared_experts)",
                num_tokens * (top_k + options.shared_experts),
                kMaxPairs);
  if (options.layers) check_at_least("layers", *options.layers, 1);
  TORCH_CHECK_VALUE(is_drawn(options.distribution) || is_counted(options.distribution),
                    "expected distribution uniform, zipf, hot, balanced, histogram, power_law or "
                    "one_hot, got '",
                    options.distribution,
                    "'");
  TORCH_CHECK_VALUE(std::isfinite(options.s) && options.s >= 0, "expected s >= 0, got ", options.s);
  TORCH_CHECK_VALUE(std::isfinite(options.alpha) && options.alpha >= 0,
                    "expected alpha >= 0, got ",
                    options.alpha);
  check_at_least("ranks", options.ranks, 1);
  TORCH_CHECK_VALUE(num_experts % options.ranks == 0,
                    "expected ranks to divide num_experts = ",
                    num_experts,
                    ", got ",
                    options.ranks);
  check_at_least("n_group", options.n_group, 1);
  check_at_most("n_group", options.n_group, kMaxGroups);
  TORCH_CHECK_VALUE(num_experts % options.n_group == 0,
                    "expected n_group to divide num_experts = ",
                    num_experts,
                    ", got ",
                    options.n_group);
  check_at_least("topk_group", options.topk_group, 1);
  check_at_most("topk_group", options.topk_group, options.n_group);
  TORCH_CHECK_VALUE(options.n_group == 1 || is_drawn(options.distribution),
                    "groups need a distribution that is drawn per token (uniform, zipf, hot), got ",
                    options.distribution);
  if (options.distribution == "hot") {
    check_at_least("hot", options.hot, top_k);
    check_at_most("hot", options.hot, num_experts);
  }
  TORCH_CHECK_VALUE((options.distribution == "histogram") == options.histogram.defined(),
                    "distribution 'histogram' and a histogram go together, got distribution '",
                    options.distribution,
                    options.histogram.defined() ? "' with a histogram" : "' without one");
}

Loads histogram_loads(int64_t num_experts, const RoutingOptions& options, int64_t layer) {
  const at::Tensor& given = options.histogram;
  const int64_t layers = options.layers.value_or(1);
  TORCH_CHECK_VALUE(
      (given.dim() == 1 && given.size(0) == num_experts) ||
          (given.dim() == 2 && given.size(0) == layers && given.size(1) == num_experts),
      "expected a histogram of sizes [num_experts] = [",
      num_experts,
      "] or [layers, num_experts] = [",
      layers,
      ", ",
      num_experts,
      "], got ",
      given.sizes());
  const at::Tensor row =
      (given.dim() == 2 ? given[layer] : given).to(at::kCPU, at::kDouble).contiguous();
  const double* values = row.const_data_ptr<double>();
  for (int64_t i = 0; i < num_experts; ++i) {
    TORCH_CHECK_VALUE(std::isfinite(values[i]) && values[i] >= 0,
                      "expected a load >= 0 for every expert, got ",
                      values[i],
                      " for expert ",
                      i);
  }
  return {values, values + num_experts};
}

/// A token that may use only some groups must find top_k experts in the poorest choice of them.
void check_groups(const Loads& loads, int64_t top_k, const RoutingOptions& options) {
  const auto group_size = static_cast<int64_t>(loads.size()) / options.n_group;
  std::vector<int64_t> active;
  for (int64_t group = 0; group < options.n_group; ++group) {
    const auto first = loads.begin() + group * group_size;
    const auto count =
        std::count_if(first, first + group_size, [](double load) { return load > 0; });
    if (count > 0) active.push_back(count);
  }
  std::sort(active.begin(), active.end());
  check_at_most("topk_group", options.topk_group, static_cast<int64_t>(active.size()));
  int64_t fewest = 0;
  for (int64_t i = 0; i < options.topk_group; ++i) fewest += active[static_cast<size_t>(i)];
  check_at_most("top_k", top_k, fewest);
}

std::vector<int32_t> drawn_layer(int64_t num_experts,
                                 int64_t top_k,
                                 const RoutingOptions& options,
                                 int64_t layer) {
  Loads loads = options.distribution == "zipf"  ? zipf_loads(num_experts, options.s)
                : options.distribution == "hot" ? first_loads(num_experts, options.hot)
                                                : first_loads(num_experts, num_experts);
  if (options.distribution != "uniform") {
    loads = scatter_loads(loads, random_order(num_experts, options.seed, layer));
  }
  if (options.n_group > 1) check_groups(loads, top_k, options);
  return draw_table_of(loads, options.n_group);
}

std::vector<int32_t> counted_layer(int64_t num_tokens,
                                   int64_t num_experts,
                                   int64_t top_k,
                                   const RoutingOptions& options,
                                   int64_t layer) {
  const int64_t pairs = num_tokens * top_k;
  if (options.distribution == "balanced") {
    const std::vector<int32_t> order = rank_order(num_experts, options.ranks, options.seed, layer);
    std::vector<int64_t> counts(static_cast<size_t>(num_experts), pairs / num_experts);
    for (int64_t i = 0; i < pairs % num_experts; ++i) {
      ++counts[static_cast<size_t>(order[static_cast<size_t>(i)])];
    }
    return count_table_of(counts, order);
  }
  const std::vector<int32_t> order = random_order(num_experts, options.seed, layer);
  Loads loads;
  if (options.distribution == "one_hot") {
    loads = scatter_loads(first_loads(num_experts, top_k), order);
  } else if (options.distribution == "power_law") {
    loads = power_law_loads(num_experts, num_tokens, options.alpha, options.seed, layer);
  } else {
    loads = histogram_loads(num_experts, options, layer);
  }
  const auto active =
      std::count_if(loads.begin(), loads.end(), [](double load) { return load > 0; });
  TORCH_CHECK_VALUE(active >= top_k,
                    "a token takes distinct experts: expected at least top_k = ",
                    top_k,
                    " experts with a load, got ",
                    active);
  return count_table_of(apportion(loads, pairs, num_tokens), order);
}

}  // namespace

at::Tensor routing_table(int64_t num_tokens,
                         int64_t num_experts,
                         int64_t top_k,
                         const RoutingOptions& options,
                         at::Device device) {
  check_options(num_tokens, num_experts, top_k, options);
  check_table_device(device);
  const int64_t layers = options.layers.value_or(1);
  at::Tensor table = at::empty({layers, table_width(num_experts, options)}, at::kInt);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::vector<int32_t> row =
        is_drawn(options.distribution)
            ? drawn_layer(num_experts, top_k, options, layer)
            : counted_layer(num_tokens, num_experts, top_k, options, layer);
    std::copy(row.begin(), row.end(), table.mutable_data_ptr<int32_t>() + layer * table.size(1));
  }
  return table.to(device);
}

void draw_routing_out(const Routing& out,
                      const at::Tensor& table,
                      int64_t num_experts,
                      int64_t top_k,
                      const RoutingOptions& options) {
  const at::Device device = out.topk_ids.device();
  check_table_device(device);
  check_buffer("topk_ids", out.topk_ids, at::kInt, device);
  check_buffer("topk_weights", out.topk_weights, at::kFloat, device);
  check_buffer("table", table, at::kInt, device);
  const int64_t width = top_k + options.shared_experts;
  const int64_t dims = options.layers ? 3 : 2;
  TORCH_CHECK_VALUE(out.topk_ids.dim() == dims && out.topk_ids.size(-1) == width &&
                        (!options.layers || out.topk_ids.size(0) == *options.layers),
                    "expected topk_ids of ",
                    dims,
                    " dimensions, the last of size top_k + shared_experts = ",
                    width,
                    ", got sizes ",
                    out.topk_ids.sizes());
  TORCH_CHECK_VALUE(out.topk_weights.sizes() == out.topk_ids.sizes(),
                    "expected topk_weights of the sizes of topk_ids, ",
                    out.topk_ids.sizes(),
                    ", got ",
                    out.topk_weights.sizes());
  const int64_t num_tokens = out.topk_ids.size(-2);
  check_options(num_tokens, num_experts, top_k, options);
  const int64_t layers = options.layers.value_or(1);
  TORCH_CHECK_VALUE(table.dim() == 2 && table.size(0) == layers &&
                        table.size(1) == table_width(num_experts, options),
                    "expected a routing table of sizes [",
                    layers,
                    ", ",
                    table_width(num_experts, options),
                    "], got ",
                    table.sizes());
  if (out.topk_ids.numel() == 0) return;

  const kernels::RoutingInput in{table.const_data_ptr<int32_t>(),
                                 table.size(1),
                                 layers,
                                 num_tokens,
                                 options.seed,
                                 static_cast<int32_t>(num_experts),
                                 static_cast<int32_t>(top_k),
                                 static_cast<int32_t>(options.shared_experts),
                                 static_cast<int32_t>(options.n_group),
                                 static_cast<int32_t>(options.topk_group),
                                 is_counted(options.distribution)};
  const kernels::RoutingOutput result{out.topk_ids.mutable_data_ptr<int32_t>(),
                                      out.topk_weights.mutable_data_ptr<float>()};
  if (device.is_cpu()) {
    kernels::moe_routing_cpu(in, result, at_parallel_for);
  } else {
    const c10::DeviceGuard guard(device);
    kernels::moe_routing_gpu(in, result, current_stream(device));
  }
}

Routing topk_routing(int64_t num_tokens,
                     int64_t num_experts,
                     int64_t top_k,
                     const RoutingOptions& options,
                     at::Device device) {
  const at::Tensor table = routing_table(num_tokens, num_experts, top_k, options, device);
  std::vector<int64_t> sizes = {num_tokens, top_k + options.shared_experts};
  if (options.layers) sizes.insert(sizes.begin(), *options.layers);
  const Routing out{at::empty(sizes, at::TensorOptions(at::kInt).device(device)),
                    at::empty(sizes, at::TensorOptions(at::kFloat).device(device))};
  draw_routing_out(out, table, num_experts, top_k, options);
  return out;
}

void topk_routing_out(const Routing& out,
                      int64_t num_experts,
                      int64_t top_k,
                      const RoutingOptions& options) {
  TORCH_CHECK_VALUE(out.topk_ids.dim() >= 2,
                    "expected topk_ids of two dimensions or three, got sizes ",
                    out.topk_ids.sizes());
  const at::Tensor table =
      routing_table(out.topk_ids.size(-2), num_experts, top_k, options, out.topk_ids.device());
  draw_routing_out(out, table, num_experts, top_k, options);
}

}  // namespace opreplay
