// SPDX-License-Identifier: MIT
#include "kernels/block_ids.h"

#include <algorithm>
#include <cstring>

#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

/// Elements that are permuted together: a few registers of any width, in a loop of fixed length.
constexpr uint32_t kRun = 64;

/// The places of whole runs of consecutive elements, in a pool of at least kLargePool. Few fall
/// outside of the pool (one in sqrt(pool)); a run that has one is walked afterwards, so that the
/// rounds have no branch.
OPREPLAY_VECTOR_CLONES
void permute_runs(int32_t* out,
                  uint32_t element,
                  int64_t runs,
                  const BlockPermutation& order,
                  uint32_t first_id) {
  const uint32_t rows = order.rows;
  const uint32_t columns = order.columns;
  const uint32_t keys[4] = {order.keys[0], order.keys[1], order.keys[2], order.keys[3]};
  for (int64_t run = 0; run < runs; ++run, element += kRun, out += kRun) {
    const uint32_t row0 = element / columns;
    const uint32_t column0 = element % columns;
    uint32_t highest = 0;
    for (uint32_t i = 0; i < kRun; ++i) {
      // A pool of kLargePool has at least kRun columns: a run crosses into one more row at most.
      uint32_t row = row0 + (column0 + i >= columns ? 1 : 0);
      uint32_t column = wrap_once(column0 + i, columns);
      row = wrap_once(row + round_value(column, keys[0], rows), rows);
      column = wrap_once(column + round_value(row, keys[1], columns), columns);
      row = wrap_once(row + round_value(column, keys[2], rows), rows);
      column = wrap_once(column + round_value(row, keys[3], columns), columns);
      const uint32_t image = row * columns + column;
      highest = std::max(highest, image);
      out[i] = static_cast<int32_t>(image + first_id);
    }
    if (highest < order.pool) continue;
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t image = static_cast<uint32_t>(out[i]) - first_id;
      out[i] = static_cast<int32_t>(walk_into_pool(image, order) + first_id);
    }
  }
}

/// Writes ids of elements that do not wrap around the pool.
void write_permuted(int32_t* out, uint32_t element, int64_t count, const BlockIds& ids) {
  const BlockPermutation& order = ids.permutation;
  if (order.pool < kLargePool) {
    for (int64_t i = 0; i < count; ++i) out[i] = block_id(element + i, ids);
    return;
  }
  const int64_t runs = count / kRun;
  permute_runs(out, element, runs, order, ids.first);
  if (const int64_t rest = count % kRun; rest > 0) {
    const int64_t done = runs * kRun;
    for (int64_t i = done; i < count; ++i) out[i] = block_id(element + i, ids);
  }
}

void write_strided(int32_t* out, uint32_t element, int64_t count, const BlockIds& ids) {
  const uint32_t pool = ids.permutation.pool;
  auto place = static_cast<uint32_t>(static_cast<uint64_t>(element) * ids.stride % pool);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int32_t>(place + ids.first);
    place = wrap_once(place + ids.stride, pool);
  }
}

}  // namespace

void write_block_ids(int32_t* out, int64_t ordinal, int64_t count, const BlockIds& ids) {
  const int64_t pool = ids.permutation.pool;
  while (count > 0) {
    const int64_t element = ordinal % pool;
    const int64_t run = std::min(count, pool - element);
    switch (ids.order) {
      case BlockOrder::kPermuted:
        write_permuted(out, static_cast<uint32_t>(element), run, ids);
        break;
      case BlockOrder::kContiguous:
        for (int64_t i = 0; i < run; ++i) {
          out[i] = static_cast<int32_t>(element + i + ids.first);
        }
        break;
      case BlockOrder::kStrided:
        write_strided(out, static_cast<uint32_t>(element), run, ids);
        break;
    }
    out += run;
    ordinal += run;
    count -= run;
  }
}

}  // namespace opreplay::kernels
