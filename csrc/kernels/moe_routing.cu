// SPDX-License-Identifier: MIT
#include "kernels/gpu.h"
#include "kernels/moe_routing.h"
#include "kernels/moe_routing_draw.h"

namespace opreplay::kernels {
namespace {

/// One thread for each token of each layer: its slots depend on each other.
OPREPLAY_KERNEL void routing_kernel(RoutingInput in, RoutingOutput out) {
  const int32_t width = in.top_k + in.shared;
  for (int64_t i = gpu::global_id(); i < in.layers * in.tokens; i += gpu::global_size()) {
    const int64_t layer = i / in.tokens;
    const int64_t token = i % in.tokens;
    int32_t* row = out.topk_ids + i * width;
    if (in.counted) {
      const CountTable table = count_table(in, layer);
      const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kTokenOrder);
      const uint32_t scattered =
          permute(static_cast<uint32_t>(token), static_cast<uint32_t>(in.tokens), keys);
      for (int32_t slot = 0; slot < in.top_k; ++slot) {
        row[slot] = counted_expert(in, table, scattered, slot);
      }
    } else {
      const DrawTable table = draw_table(in, layer);
      const uint64_t groups = draw_groups(in, table, layer, token);
      for (int32_t slot = 0; slot < in.top_k; ++slot) {
        const auto pair = static_cast<uint32_t>(token * in.top_k + slot);
        row[slot] = draw_expert(in, table, layer, pair, row, slot, groups);
      }
    }
    const CounterKeys keys = routing_keys(in.seed, layer, RoutingStream::kWeight);
    for (int32_t slot = 0; slot < width; ++slot) {
      if (slot >= in.top_k) row[slot] = in.experts + slot - in.top_k;
      out.topk_weights[i * width + slot] = row_weight(in, keys, token, slot);
    }
  }
}

}  // namespace

void moe_routing_gpu(const RoutingInput& in, const RoutingOutput& out, void* stream) {
  const uint32_t blocks = gpu::blocks_for(in.layers * in.tokens);
  gpu::launch(routing_kernel, blocks, gpu::default_threads(), 0, stream, in, out);
}

}  // namespace opreplay::kernels
