// SPDX-License-Identifier: MIT
#include "kernels/block_ids.h"

#include <algorithm>
#include <cstring>

#include "kernels/vector_clones.h"

namespace opreplay::kernels {
namespace {

/// Elements that are permuted together: a few registers of any width, in a loop of fixed length.
constexpr uint16_t kRun = 128;

/// Row and column of each element of a run.
struct Coordinates {
  uint16_t row[kRun];
  uint16_t column[kRun];
};

/// Where a run of consecutive elements begins to go through the network.
inline void locate_run(Coordinates& at, uint32_t element, uint16_t columns) {
  const auto first_row = static_cast<uint16_t>(element / columns);
  const auto first_column = static_cast<uint16_t>(element % columns);
  for (uint16_t i = 0; i < kRun; ++i) {
    at.row[i] = first_row;
    at.column[i] = static_cast<uint16_t>(first_column + i);
    // A pool of kLargePool has at least kRun / 2 columns: a run goes on in two more rows at most.
    for (int wrap = 0; wrap < 2; ++wrap) {
      const auto less = static_cast<uint16_t>(at.column[i] - columns);
      at.row[i] = static_cast<uint16_t>(at.row[i] + (at.column[i] >= columns ? 1 : 0));
      at.column[i] = std::min(at.column[i], less);
    }
  }
}

/// The places of whole runs of consecutive elements, in a pool of at least kLargePool. Few fall
/// outside of the pool (one in sqrt(pool)); a run that has one is walked afterwards, so that the
/// rounds have no branch.
OPREPLAY_VECTOR_CLONES
void permute_runs(int32_t* __restrict out,
                  uint32_t element,
                  int64_t runs,
                  const BlockPermutation& order,
                  uint32_t first_id) {
  const uint16_t rows = order.rows;
  const uint16_t columns = order.columns;
  const uint16_t keys[4] = {order.keys[0], order.keys[1], order.keys[2], order.keys[3]};
  // A size for each element: of a product with what is the same for all, gcc takes the high half in
  // 32 bits.
  Coordinates sizes;
  std::fill_n(sizes.row, kRun, rows);
  std::fill_n(sizes.column, kRun, columns);
  for (int64_t run = 0; run < runs; ++run, element += kRun, out += kRun) {
    Coordinates at;
    locate_run(at, element, columns);
    for (uint16_t i = 0; i < kRun; ++i) {
      uint16_t row = at.row[i];
      uint16_t column = at.column[i];
      row = add_modulo(row, round_value(column, keys[0], sizes.row[i]), rows);
      column = add_modulo(column, round_value(row, keys[1], sizes.column[i]), columns);
      row = add_modulo(row, round_value(column, keys[2], sizes.row[i]), rows);
      column = add_modulo(column, round_value(row, keys[3], sizes.column[i]), columns);
      at.row[i] = row;
      at.column[i] = column;
    }
    uint32_t highest = 0;
    for (uint16_t i = 0; i < kRun; ++i) {
      const uint32_t image = uint32_t{at.row[i]} * columns + at.column[i];
      highest = std::max(highest, image);
      out[i] = static_cast<int32_t>(image + first_id);
    }
    if (highest < order.pool) continue;
    for (uint16_t i = 0; i < kRun; ++i) {
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

/// a - b if that is not negative, else a: the remainder by b of an a below 2 b, without a branch.
uint32_t wrap_once(uint32_t a, uint32_t b) {
  const uint32_t less = a - b;
  return a < less ? a : less;
}

/// A run of places one by one, then each from the place a run before it, which is a constant
/// distance away: so that no element waits for its neighbour.
OPREPLAY_VECTOR_CLONES
void write_strided(int32_t* out, uint32_t element, int64_t count, const BlockIds& ids) {
  const uint32_t pool = ids.permutation.pool;
  const uint32_t first = ids.first;
  const auto run_stride = static_cast<uint32_t>(uint64_t{kRun} * ids.stride % pool);
  auto place = static_cast<uint32_t>(static_cast<uint64_t>(element) * ids.stride % pool);
  for (int64_t i = 0; i < std::min<int64_t>(count, kRun); ++i) {
    out[i] = static_cast<int32_t>(place + first);
    place = wrap_once(place + ids.stride, pool);
  }
  for (int64_t i = kRun; i < count; ++i) {
    const uint32_t before = static_cast<uint32_t>(out[i - kRun]) - first;
    out[i] = static_cast<int32_t>(wrap_once(before + run_stride, pool) + first);
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
