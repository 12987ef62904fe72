// SPDX-License-Identifier: MIT
#include "kernels/moe_routing.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/moe_routing_draw.h"
#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kBatchTokens = 128;   // drawn at a time: they stay in the first cache
constexpr int64_t kGrainPairs = 16384;  // pairs that are worth a thread

/// First tries of one slot of `count` tokens, none of which looks at another. Without `columns` all
/// experts are equally likely.
OPREPLAY_VECTOR_CLONES void draw_slot(const AliasColumn* columns,
                                      int32_t experts,
                                      CounterKeys keys,
                                      uint32_t first_pair,
                                      uint32_t pair_step,
                                      int64_t count,
                                      int32_t* drawn) {
  if (columns == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t pair = first_pair + pair_step * static_cast<uint32_t>(i);
      drawn[i] =
          static_cast<int32_t>(below(mix(pair, keys.k1, keys.k2), static_cast<uint32_t>(experts)));
    }
    return;
  }
  // In two loops, since only the first has vector instructions for all it does.
  std::array<uint32_t, kBatchTokens> random;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t pair = first_pair + pair_step * static_cast<uint32_t>(i);
    random[static_cast<size_t>(i)] = mix(pair, keys.k1, keys.k2);
  }
  for (int64_t i = 0; i < count; ++i) {
    drawn[i] = draw_column(columns, experts, random[static_cast<size_t>(i)]);
  }
}

/// Which of `count` tokens have an expert twice; `tries` is [top_k, kBatchTokens].
OPREPLAY_VECTOR_CLONES void find_repeats(const int32_t* tries,
                                         int32_t top_k,
                                         int64_t count,
                                         int32_t* repeats) {
  std::fill_n(repeats, count, 0);
  for (int32_t a = 1; a < top_k; ++a) {
    const int32_t* later = tries + a * kBatchTokens;
    for (int32_t b = 0; b < a; ++b) {
      const int32_t* earlier = tries + b * kBatchTokens;
      for (int64_t i = 0; i < count; ++i) repeats[i] |= earlier[i] == later[i] ? 1 : 0;
    }
  }
}

/// Every column is full: all experts are equally likely.
bool is_uniform(const AliasColumn* columns, int32_t experts) {
  return std::all_of(columns, columns + experts, [columns](const AliasColumn& column) {
    return columns + column.alias == &column;
  });
}

/// Weights of `pairs` pairs of slots from `first` on: what one is given the other gives.
OPREPLAY_VECTOR_CLONES void fill_weight_pairs(
    uint32_t base, CounterKeys keys, uint32_t first, int64_t pairs, float* weights) {
  for (int64_t i = 0; i < pairs; ++i) {
    const uint32_t given = given_weight(base, keys, first + static_cast<uint32_t>(i));
    weights[2 * i] = whole_weight(base + given);
    weights[2 * i + 1] = whole_weight(base - given);
  }
}

/// Weights of the tokens [begin, end): rows of an even width are one run of pairs.
void fill_weights(
    const RoutingInput& in, CounterKeys keys, int64_t begin, int64_t end, float* weights) {
  const int32_t width = in.top_k + in.shared;
  const uint32_t base = kWholeWeight / static_cast<uint32_t>(width);
  const int64_t pairs = width / 2;
  if (width % 2 == 0) {
    fill_weight_pairs(base,
                      keys,
                      static_cast<uint32_t>(begin * pairs),
                      (end - begin) * pairs,
                      weights + begin * width);
    const float rest = whole_weight(kWholeWeight - base * static_cast<uint32_t>(width));
    if (rest == 0.0F) return;
    for (int64_t token = begin; token < end; ++token) weights[token * width] += rest;
    return;
  }
  for (int64_t token = begin; token < end; ++token) {
    for (int32_t slot = 0; slot < width; ++slot) {
      weights[token * width + slot] = row_weight(in, keys, token, slot);
    }
  }
}

/// Plackett-Luce sampling of one token, slot after slot.
void draw_token(
    const RoutingInput& in, const DrawTable& table, int64_t layer, int64_t token, int32_t* row) {
  const uint64_t groups = draw_groups(in, table, layer, token);
  for (int32_t slot = 0; slot < in.top_k; ++slot) {
    const auto pair = static_cast<uint32_t>(token * in.top_k + slot);
    row[slot] = draw_expert(in, table, layer, pair, row, slot, groups);
  }
}

/// The same of the tokens [begin, end) of a layer: all their first tries at once, and further ones
/// only for the tokens in which two of them fell on one expert.
void draw_tokens(
    const RoutingInput& in, int64_t layer, int64_t begin, int64_t end, int32_t* topk_ids) {
  const int32_t width = in.top_k + in.shared;
  const DrawTable table = draw_table(in, layer);
  if (in.groups > 1) {
    for (int64_t token = begin; token < end; ++token) {
      draw_token(in, table, layer, token, topk_ids + token * width);
    }
    return;
  }
  const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kExpert);
  const AliasColumn* columns = is_uniform(table.columns, in.experts) ? nullptr : table.columns;
  std::vector<int32_t> tries(static_cast<size_t>(in.top_k * kBatchTokens));
  std::array<int32_t, kBatchTokens> repeats;
  for (int64_t first = begin; first < end; first += kBatchTokens) {
    const int64_t count = std::min(end - first, kBatchTokens);
    for (int32_t slot = 0; slot < in.top_k; ++slot) {
      draw_slot(columns,
                in.experts,
                keys,
                static_cast<uint32_t>(first * in.top_k + slot),
                static_cast<uint32_t>(in.top_k),
                count,
                tries.data() + slot * kBatchTokens);
    }
    find_repeats(tries.data(), in.top_k, count, repeats.data());
    for (int64_t i = 0; i < count; ++i) {
      int32_t* row = topk_ids + (first + i) * width;
      for (int32_t slot = 0; slot < in.top_k; ++slot) {
        row[slot] = tries[static_cast<size_t>(slot * kBatchTokens + i)];
      }
      if (repeats[static_cast<size_t>(i)] == 0) continue;
      for (int32_t slot = 1; slot < in.top_k; ++slot) {
        if (!holds(row, slot, row[slot])) continue;
        const auto pair = static_cast<uint32_t>((first + i) * in.top_k + slot);
        row[slot] = draw_expert(in, table, layer, pair, row, slot, kAllGroups);
      }
    }
  }
}

/// The tokens [begin, end) of a layer whose experts have exact counts.
void count_out_tokens(
    const RoutingInput& in, int64_t layer, int64_t begin, int64_t end, int32_t* topk_ids) {
  const int32_t width = in.top_k + in.shared;
  const CountTable table = count_table(in, layer);
  const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kTokenOrder);
  for (int64_t token = begin; token < end; ++token) {
    const uint32_t scattered =
        permute(static_cast<uint32_t>(token), static_cast<uint32_t>(in.tokens), keys);
    for (int32_t slot = 0; slot < in.top_k; ++slot) {
      topk_ids[token * width + slot] = counted_expert(in, table, scattered, slot);
    }
  }
}

}  // namespace

void moe_routing_cpu(const RoutingInput& in,
                     const RoutingOutput& out,
                     const ParallelFor& parallel_for) {
  const int32_t width = in.top_k + in.shared;
  const int64_t grain = std::max<int64_t>(1, kGrainPairs / width);
  for (int64_t layer = 0; layer < in.layers; ++layer) {
    int32_t* topk_ids = out.topk_ids + layer * in.tokens * width;
    float* topk_weights = out.topk_weights + layer * in.tokens * width;
    const CounterKeys weight_keys = routing_keys(in.seed, layer, RoutingStream::kWeight);
    parallel_for(in.tokens, grain, [&](int64_t begin, int64_t end) {
      if (in.counted) {
        count_out_tokens(in, layer, begin, end, topk_ids);
      } else {
        draw_tokens(in, layer, begin, end, topk_ids);
      }
      for (int64_t token = begin; token < end; ++token) {
        for (int32_t i = 0; i < in.shared; ++i) {
          topk_ids[token * width + in.top_k + i] = in.experts + i;
        }
      }
      fill_weights(in, weight_keys, begin, end, topk_weights);
    });
  }
}

}  // namespace opreplay::kernels
