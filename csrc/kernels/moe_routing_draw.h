// SPDX-License-Identifier: MIT
//
// One draw of the routing, the same on every device: integers only, a function of seed, layer,
// token and slot.
#pragma once

#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/gpu.h"
#include "kernels/moe_routing.h"

namespace opreplay::kernels {

/// What a stream of random numbers is for; each layer has one of each.
enum class RoutingStream : uint64_t {
  kExpert,       ///< an expert within its group, counter: pair
  kGroupOfSlot,  ///< the group that a slot's expert comes from, counter: pair
  kGroupChoice,  ///< the groups of a token, counter: token * groups_chosen + index
  kLeftOver,     ///< the exact draw after failed tries, counter: pair
  kWeight,       ///< counter: pair of slots
  kTokenOrder,   ///< keys of a permutation of tokens
  kExpertOrder,  ///< which expert is hot, counter: position
  kLoad,         ///< loads of the power law, counter: expert
};

OPREPLAY_HOST_DEVICE CounterKeys routing_keys(uint64_t seed,
                                              int64_t layer,
                                              RoutingStream purpose,
                                              uint64_t attempt = 0) {
  return counter_keys(
      seed, static_cast<uint64_t>(layer) * 16 + static_cast<uint64_t>(purpose), attempt);
}

/// Tries before the exact draw. A try fails when its expert is taken already; leaving the loop
/// early or late gives the same distribution, so this number is a matter of speed alone.
inline constexpr uint64_t kDrawTries = 8;

struct DrawTable {
  const AliasColumn* columns;
  const uint32_t* weights;
  const uint32_t* group_weights;
};

struct CountTable {
  const int32_t* starts;
  const int32_t* experts;
};

OPREPLAY_HOST_DEVICE DrawTable draw_table(const RoutingInput& in, int64_t layer) {
  const int32_t* table = in.table + layer * in.table_stride;
  return {reinterpret_cast<const AliasColumn*>(table),
          reinterpret_cast<const uint32_t*>(table + 2 * in.experts),
          reinterpret_cast<const uint32_t*>(table + 3 * in.experts)};
}

OPREPLAY_HOST_DEVICE CountTable count_table(const RoutingInput& in, int64_t layer) {
  const int32_t* table = in.table + layer * in.table_stride;
  return {table, table + in.experts + 1};
}

/// High bits choose a column, what is left of them is compared with its threshold.
OPREPLAY_HOST_DEVICE int32_t draw_column(const AliasColumn* columns,
                                         int32_t count,
                                         uint32_t random) {
  const uint64_t scaled = static_cast<uint64_t>(random) * static_cast<uint32_t>(count);
  const auto column = static_cast<int32_t>(scaled >> 32);
  return static_cast<uint32_t>(scaled) < columns[column].threshold ? column : columns[column].alias;
}

OPREPLAY_HOST_DEVICE bool holds(const int32_t* row, int32_t count, int32_t expert) {
  for (int32_t i = 0; i < count; ++i) {
    if (row[i] == expert) return true;
  }
  return false;
}

inline constexpr uint64_t kAllGroups = ~uint64_t{0};

OPREPLAY_HOST_DEVICE bool in_set(uint64_t set, int32_t member) { return (set >> member & 1) != 0; }

/// Draws one of the groups in `set` (or, with `outside`, not in it) in proportion to their weights.
OPREPLAY_HOST_DEVICE int32_t draw_group(
    const RoutingInput& in, const DrawTable& table, uint64_t set, bool outside, uint32_t random) {
  uint32_t total = 0;
  for (int32_t group = 0; group < in.groups; ++group) {
    if (in_set(set, group) != outside) total += table.group_weights[group];
  }
  uint32_t point = below(random, total);
  int32_t group = 0;
  for (;; ++group) {
    if (in_set(set, group) == outside) continue;
    if (point < table.group_weights[group]) return group;
    point -= table.group_weights[group];
  }
}

/// The set of groups that a token may use.
OPREPLAY_HOST_DEVICE uint64_t draw_groups(const RoutingInput& in,
                                          const DrawTable& table,
                                          int64_t layer,
                                          int64_t token) {
  if (in.groups_chosen == in.groups) return kAllGroups;
  const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kGroupChoice);
  uint64_t chosen = 0;
  for (int32_t i = 0; i < in.groups_chosen; ++i) {
    const uint32_t random =
        mix(static_cast<uint32_t>(token * in.groups_chosen + i), keys.k1, keys.k2);
    chosen |= uint64_t{1} << draw_group(in, table, chosen, true, random);
  }
  return chosen;
}

/// Draws the expert of one slot, given the slots before it in `row`.
OPREPLAY_HOST_DEVICE int32_t draw_expert(const RoutingInput& in,
                                         const DrawTable& table,
                                         int64_t layer,
                                         uint32_t pair,
                                         const int32_t* row,
                                         int32_t slot,
                                         uint64_t groups) {
  const int32_t group_size = in.experts / in.groups;
  for (uint64_t attempt = 0; attempt < kDrawTries; ++attempt) {
    int32_t first = 0;
    if (in.groups > 1) {
      const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kGroupOfSlot, attempt);
      first = group_size * draw_group(in, table, groups, false, mix(pair, keys.k1, keys.k2));
    }
    const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kExpert, attempt);
    const int32_t expert =
        first + draw_column(table.columns + first, group_size, mix(pair, keys.k1, keys.k2));
    if (!holds(row, slot, expert)) return expert;
  }

  uint64_t left = 0;
  for (int32_t expert = 0; expert < in.experts; ++expert) {
    if (in_set(groups, expert / group_size) && !holds(row, slot, expert)) {
      left += table.weights[expert];
    }
  }
  const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kLeftOver);
  uint64_t point = static_cast<uint64_t>(mix(pair, keys.k1, keys.k2)) * left >> 32;
  int32_t expert = 0;
  for (;; ++expert) {
    if (!in_set(groups, expert / group_size) || holds(row, slot, expert)) continue;
    if (point < table.weights[expert]) return expert;
    point -= table.weights[expert];
  }
}

/// A permutation of [0, count): steps that each permute the numbers of as many bits, repeated for a
/// number that lands outside until it is inside again.
OPREPLAY_HOST_DEVICE uint32_t permute(uint32_t i, uint32_t count, CounterKeys keys) {
  uint32_t bits = 1;
  while (bits < 32 && (count - 1) >> bits != 0) ++bits;
  const uint32_t mask = 0xffffffffu >> (32 - bits);
  const uint32_t shift = (bits + 1) / 2;
  do {
    i = (i ^ keys.k1) & mask;
    i ^= i >> shift;
    i = i * 0x7feb352du & mask;
    i ^= i >> shift;
    i = (i ^ keys.k2) & mask;
    i = i * 0x846ca68bu & mask;
    i ^= i >> shift;
  } while (i >= count);
  return i;
}

/// The expert of one slot where counts are exact. An expert owns a run of at most `tokens` points
/// of the line and the slots of a token lie `tokens` apart, so that no token meets an expert twice.
OPREPLAY_HOST_DEVICE int32_t counted_expert(const RoutingInput& in,
                                            const CountTable& table,
                                            uint32_t scattered_token,
                                            int32_t slot) {
  const int64_t point = scattered_token + slot * in.tokens;
  int32_t low = 0;
  int32_t high = in.experts;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (table.starts[middle] <= point) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return table.experts[low];
}

/// A row of weights sums to exactly one: they are multiples of 2^-24, and of two neighbours one
/// gives what the other gets.
inline constexpr uint32_t kWholeWeight = 1u << 24;

OPREPLAY_HOST_DEVICE float whole_weight(uint32_t parts) {
  return static_cast<float>(static_cast<int32_t>(parts)) * (1.0F / kWholeWeight);
}

OPREPLAY_HOST_DEVICE uint32_t given_weight(uint32_t base,
                                           CounterKeys keys,
                                           uint32_t pair_of_slots) {
  return below(mix(pair_of_slots, keys.k1, keys.k2), base);
}

OPREPLAY_HOST_DEVICE float row_weight(const RoutingInput& in,
                                      CounterKeys keys,
                                      int64_t token,
                                      int32_t slot) {
  const auto width = static_cast<uint32_t>(in.top_k + in.shared);
  const uint32_t base = kWholeWeight / width;
  uint32_t parts = base;
  if ((static_cast<uint32_t>(slot) | 1u) < width) {
    const auto pair_of_slots = static_cast<uint32_t>(token * ((width + 1) / 2) + slot / 2);
    const uint32_t given = given_weight(base, keys, pair_of_slots);
    parts = slot % 2 == 0 ? base + given : base - given;
  }
  if (slot == 0) parts += kWholeWeight - base * width;
  return whole_weight(parts);
}

}  // namespace opreplay::kernels
