// SPDX-License-Identifier: MIT
#include "kernels/moe_routing.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/moe_routing_draw.h"
#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kBatch = 1024;        // slots drawn at a time: they stay in the first cache
constexpr int64_t kGrainPairs = 16384;  // pairs that are worth a thread

/// First tries of `count` pairs from `first` on, none of which looks at another.
OPREPLAY_VECTOR_CLONES void draw_first_tries(const AliasColumn* columns,
                                             int32_t experts,
                                             CounterKeys keys,
                                             uint32_t first,
                                             int64_t count,
                                             int32_t* drawn) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t random = mix(first + static_cast<uint32_t>(i), keys.k1, keys.k2);
    drawn[i] = draw_column(columns, experts, random);
  }
}

OPREPLAY_VECTOR_CLONES void fill_weights(
    const RoutingInput& in, CounterKeys keys, int64_t begin, int64_t end, float* weights) {
  const int32_t width = in.top_k + in.shared;
  for (int64_t token = begin; token < end; ++token) {
    for (int32_t slot = 0; slot < width; ++slot) {
      weights[token * width + slot] = row_weight(in, keys, token, slot);
    }
  }
}

/// Plackett-Luce sampling of the tokens [begin, end) of a layer.
void draw_tokens(
    const RoutingInput& in, int64_t layer, int64_t begin, int64_t end, int32_t* topk_ids) {
  const int32_t width = in.top_k + in.shared;
  const DrawTable table = draw_table(in, layer);
  const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kExpert);
  // For each expert the last token that took it: no token of this range is below `begin`.
  std::vector<int64_t> taken_by(static_cast<size_t>(in.experts), begin - 1);
  const int64_t batch_tokens = std::max<int64_t>(1, kBatch / in.top_k);
  std::vector<int32_t> tries(static_cast<size_t>(batch_tokens * in.top_k));

  for (int64_t first = begin; first < end; first += batch_tokens) {
    const int64_t last = std::min(end, first + batch_tokens);
    const auto first_pair = static_cast<uint32_t>(first * in.top_k);
    if (in.groups == 1) {
      draw_first_tries(
          table.columns, in.experts, keys, first_pair, (last - first) * in.top_k, tries.data());
    }
    const int32_t* next_try = tries.data();
    for (int64_t token = first; token < last; ++token) {
      int32_t* row = topk_ids + token * width;
      const uint64_t groups = draw_groups(in, table, layer, token);
      for (int32_t slot = 0; slot < in.top_k; ++slot) {
        int32_t expert = *next_try++;
        if (in.groups > 1 || taken_by[static_cast<size_t>(expert)] == token) {
          const auto pair = static_cast<uint32_t>(token * in.top_k + slot);
          expert = draw_expert(in, table, layer, pair, row, slot, groups);
        }
        taken_by[static_cast<size_t>(expert)] = token;
        row[slot] = expert;
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
