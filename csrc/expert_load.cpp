// SPDX-License-Identifier: MIT
#include "expert_load.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/counter_random.h"
#include "kernels/moe_routing_draw.h"

namespace opreplay {
namespace {

using kernels::RoutingStream;

/// Weights of a layer add up to at most this, so that any sum of them is a uint32.
constexpr double kWeightTotal = 2147483648.0;

// log and exp of the C library differ between systems in the last bit, and a table must not. These
// use nothing but the four operations, which IEEE fixes.

double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  double power = z;
  double sum = 0.0;
  for (int term = 1; term < 64; term += 2) {
    sum += power / term;
    power *= z * z;
  }
  constexpr double kLog2 = 0.6931471805599453;
  return 2.0 * sum + exponent * kLog2;
}

double portable_exp(double x) {
  constexpr double kLog2 = 0.6931471805599453;
  const double whole = std::floor(x / kLog2);
  const double rest = x - whole * kLog2;
  double term = 1.0;
  double sum = 1.0;
  for (int i = 1; i < 24; ++i) {
    term *= rest / i;
    sum += term;
  }
  return std::ldexp(sum, static_cast<int>(whole));
}

double portable_pow(double base, double exponent) {
  return portable_exp(exponent * portable_log(base));
}

double unit_interval(uint32_t random) { return (random + 0.5) / 4294967296.0; }

/// Whole weights in the proportion of the loads; none that was above zero becomes zero.
std::vector<uint32_t> whole_weights(const Loads& loads) {
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  const double room = kWeightTotal - static_cast<double>(loads.size());
  std::vector<uint32_t> weights(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] > 0) weights[i] = static_cast<uint32_t>(loads[i] / total * room) + 1;
  }
  return weights;
}

/// Vose's alias table for one group: `count` columns of equal height share out the weights, so that
/// each holds at most two experts.
void fill_columns(const uint32_t* weights, int64_t count, kernels::AliasColumn* columns) {
  const uint64_t height = std::accumulate(weights, weights + count, uint64_t{0});
  std::vector<uint64_t> left(static_cast<size_t>(count));
  std::vector<int32_t> small;
  std::vector<int32_t> large;
  for (int32_t i = 0; i < count; ++i) {
    columns[i] = {0xffffffffu, i};
    left[static_cast<size_t>(i)] = uint64_t{weights[i]} * static_cast<uint64_t>(count);
    (left[static_cast<size_t>(i)] < height ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const int32_t low = small.back();
    const int32_t high = large.back();
    small.pop_back();
    const uint64_t own = left[static_cast<size_t>(low)];
    columns[low] = {static_cast<uint32_t>((own << 32) / height), high};
    left[static_cast<size_t>(high)] -= height - own;
    if (left[static_cast<size_t>(high)] < height) {
      large.pop_back();
      small.push_back(high);
    }
  }
}

/// Order of [0, count) by the random number of each; equal numbers keep their order.
std::vector<int32_t> sorted_by_random(int64_t count, CounterKeys keys) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [keys](int32_t a, int32_t b) {
    return mix(static_cast<uint32_t>(a), keys.k1, keys.k2) <
           mix(static_cast<uint32_t>(b), keys.k1, keys.k2);
  });
  return order;
}

}  // namespace

Loads zipf_loads(int64_t experts, double s) {
  Loads loads(static_cast<size_t>(experts), 1.0);
  if (s == 0.0) return loads;
  for (int64_t rank = 1; rank <= experts; ++rank) {
    loads[static_cast<size_t>(rank - 1)] = portable_pow(static_cast<double>(rank), -s);
  }
  return loads;
}

Loads power_law_loads(int64_t experts, int64_t tokens, double alpha, uint64_t seed, int64_t layer) {
  const double most = std::max(1.0, 0.8 * static_cast<double>(tokens));
  const CounterKeys keys = kernels::routing_keys(seed, layer, RoutingStream::kLoad);
  Loads loads(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) {
    const double u = unit_interval(mix(static_cast<uint32_t>(expert), keys.k1, keys.k2));
    // The inverse of the distribution function; at alpha = 1 its limit.
    const double e = 1.0 - alpha;
    const double load = std::abs(e) < 1e-9
                            ? portable_exp(u * portable_log(most))
                            : portable_pow((portable_pow(most, e) - 1.0) * u + 1.0, 1.0 / e);
    loads[static_cast<size_t>(expert)] = load;
  }
  return loads;
}

Loads first_loads(int64_t experts, int64_t count) {
  Loads loads(static_cast<size_t>(experts), 0.0);
  std::fill_n(loads.begin(), count, 1.0);
  return loads;
}

std::vector<int32_t> random_order(int64_t count, uint64_t seed, int64_t layer) {
  return sorted_by_random(count, kernels::routing_keys(seed, layer, RoutingStream::kExpertOrder));
}

std::vector<int32_t> rank_order(int64_t experts, int64_t ranks, uint64_t seed, int64_t layer) {
  const int64_t per_rank = experts / ranks;
  const std::vector<int32_t> shuffled = random_order(experts, seed, layer);
  std::vector<std::vector<int32_t>> of_rank(static_cast<size_t>(ranks));
  for (const int32_t expert : shuffled) {
    of_rank[static_cast<size_t>(expert / per_rank)].push_back(expert);
  }
  std::vector<int32_t> order;
  order.reserve(shuffled.size());
  for (int64_t i = 0; i < per_rank; ++i) {
    for (const auto& rank : of_rank) order.push_back(rank[static_cast<size_t>(i)]);
  }
  return order;
}

Loads scatter_loads(const Loads& loads, const std::vector<int32_t>& order) {
  Loads scattered(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) scattered[static_cast<size_t>(order[i])] = loads[i];
  return scattered;
}

std::vector<int64_t> apportion(const Loads& loads, int64_t total, int64_t cap) {
  std::vector<int64_t> counts(loads.size(), 0);
  std::vector<size_t> open;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] > 0) open.push_back(i);
  }
  // Experts whose share is above the cap get the cap; their rest raises the share of the others.
  int64_t left = total;
  for (bool capped = true; capped && !open.empty();) {
    double sum = 0.0;
    for (const size_t i : open) sum += loads[i];
    std::vector<size_t> below_cap;
    const int64_t shared_out = left;
    for (const size_t i : open) {
      if (loads[i] * static_cast<double>(shared_out) / sum >= static_cast<double>(cap)) {
        counts[i] = cap;
        left -= cap;
      } else {
        below_cap.push_back(i);
      }
    }
    capped = below_cap.size() < open.size();
    open = std::move(below_cap);
  }

  double sum = 0.0;
  for (const size_t i : open) sum += loads[i];
  std::vector<double> remainders(loads.size(), 0.0);
  const int64_t shared_out = left;
  for (const size_t i : open) {
    const double share = loads[i] * static_cast<double>(shared_out) / sum;
    counts[i] = static_cast<int64_t>(share);
    remainders[i] = share - static_cast<double>(counts[i]);
    left -= counts[i];
  }
  std::stable_sort(open.begin(), open.end(), [&remainders](size_t a, size_t b) {
    return remainders[a] > remainders[b];
  });
  for (size_t next = 0; left > 0; next = (next + 1) % open.size()) {
    if (counts[open[next]] >= cap) continue;
    ++counts[open[next]];
    --left;
  }
  return counts;
}

std::vector<int32_t> draw_table_of(const Loads& loads, int64_t groups) {
  const auto experts = static_cast<int64_t>(loads.size());
  const int64_t group_size = experts / groups;
  const std::vector<uint32_t> weights = whole_weights(loads);
  std::vector<int32_t> table(static_cast<size_t>(3 * experts + groups));
  auto* columns = reinterpret_cast<kernels::AliasColumn*>(table.data());
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * group_size;
    fill_columns(weights.data() + first, group_size, columns + first);
    const uint32_t weight =
        std::accumulate(weights.data() + first, weights.data() + first + group_size, 0u);
    table[static_cast<size_t>(3 * experts + group)] = std::bit_cast<int32_t>(weight);
  }
  std::transform(weights.begin(), weights.end(), table.begin() + 2 * experts, [](uint32_t weight) {
    return std::bit_cast<int32_t>(weight);
  });
  return table;
}

std::vector<int32_t> count_table_of(const std::vector<int64_t>& counts,
                                    const std::vector<int32_t>& order) {
  std::vector<int32_t> table;
  table.reserve(2 * order.size() + 1);
  int64_t start = 0;
  for (const int32_t expert : order) {
    table.push_back(static_cast<int32_t>(start));
    start += counts[static_cast<size_t>(expert)];
  }
  table.push_back(static_cast<int32_t>(start));
  table.insert(table.end(), order.begin(), order.end());
  return table;
}

}  // namespace opreplay
