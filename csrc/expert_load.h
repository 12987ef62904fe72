// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace opreplay {

/// Relative load of each expert, as an engine or a formula gives it; never negative, not all zero.
using Loads = std::vector<double>;

/// Load proportional to rank^-s.
Loads zipf_loads(int64_t experts, double s);

/// Loads drawn from a density proportional to x^-alpha on [1, 0.8 * tokens].
Loads power_law_loads(int64_t experts, int64_t tokens, double alpha, uint64_t seed, int64_t layer);

/// The same load on the first `count` experts, none on the others.
Loads first_loads(int64_t experts, int64_t count);

/// A random order of [0, count), from `seed` and `layer`.
std::vector<int32_t> random_order(int64_t count, uint64_t seed, int64_t layer);

/// An order of the experts in which any run of neighbours spreads over the ranks as evenly as it
/// can. A rank owns experts / ranks neighbours.
std::vector<int32_t> rank_order(int64_t experts, int64_t ranks, uint64_t seed, int64_t layer);

/// result[order[i]] = loads[i].
Loads scatter_loads(const Loads& loads, const std::vector<int32_t>& order);

/// Whole numbers that add up to `total`, none above `cap`, as close to the proportion of `loads` as
/// that allows (largest remainders, the first expert where they are equal). What an expert at the
/// cap cannot take goes to the others. Needs total <= cap * (number of loads above zero).
std::vector<int64_t> apportion(const Loads& loads, int64_t total, int64_t cap);

/// Table of a layer for kernels::RoutingInput: alias columns, weights, group weights.
std::vector<int32_t> draw_table_of(const Loads& loads, int64_t groups);

/// Table of a layer for kernels::RoutingInput: starts and experts, in the given order.
std::vector<int32_t> count_table_of(const std::vector<int64_t>& counts,
                                    const std::vector<int32_t>& order);

}  // namespace opreplay
