// SPDX-License-Identifier: MIT
//
// Draws, for each token, `top_k` distinct experts and their weights.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace opreplay::kernels {

/// One column of an alias table: the column itself below the threshold, the alias from there on.
struct AliasColumn {
  uint32_t threshold;
  int32_t alias;
};

/// Where in a layer's table its parts start, in int32.
///
/// Drawn tables serve Plackett-Luce sampling, expert after expert without replacement:
///   AliasColumn [experts] (a table for each group, ids counted from the group's first expert),
///   weights [experts], group weights [groups].
/// Counted tables give every expert an exact number of tokens:
///   starts [experts + 1] on a line of tokens * top_k points, expert ids [experts] in the order of
///   starts.
struct RoutingInput {
  const int32_t* table;  ///< [layers, table_stride]
  int64_t table_stride;
  int64_t layers;
  int64_t tokens;
  uint64_t seed;
  int32_t experts;        ///< routed experts; shared experts have the ids from here on
  int32_t top_k;          ///< routed experts of a token
  int32_t shared;         ///< shared experts, which every token takes
  int32_t groups;         ///< experts fall into so many groups of neighbours, at most 64
  int32_t groups_chosen;  ///< of which a token's experts come from so many
  bool counted;
};

struct RoutingOutput {
  int32_t* topk_ids;    ///< [layers, tokens, top_k + shared]
  float* topk_weights;  ///< same shape
};

void moe_routing_cpu(const RoutingInput& in,
                     const RoutingOutput& out,
                     const ParallelFor& parallel_for);
void moe_routing_gpu(const RoutingInput& in, const RoutingOutput& out, void* stream);

}  // namespace opreplay::kernels
