// SPDX-License-Identifier: MIT
//
// Block tables of a paged KV cache: which blocks of the pool hold which tokens of which sequence.
#pragma once

#include <cstdint>

#include "kernels/block_ids.h"
#include "kernels/gpu.h"
#include "kernels/parallel.h"

namespace opreplay::kernels {

/// What to do when the sequences need more blocks than there are.
enum class OnExhausted : int32_t {
  kError,
  kShrinkLengths,  ///< shorten the sequences in proportion, each keeps at least one block
  kShare,          ///< begin again at the first block: sequences then share blocks
};

/// A request that was checked as far as that is possible without reading the lengths.
struct BlockRequest {
  int64_t num_seqs;
  int64_t block_size;
  int64_t shared_prefix_blocks;  ///< leading blocks that all sequences share
  int64_t width;                 ///< entries that a row can hold
  int64_t capacity;              ///< entries that all rows together can hold, CSR form
  OnExhausted on_exhausted;
  BlockIds ids;
};

/// What is wrong with the lengths, if anything.
enum BlockError : int32_t {
  kBlocksFit,
  kNegativeLength,   ///< value: the length
  kRowTooWide,       ///< value: blocks of the sequence, limit: width
  kPoolExhausted,    ///< value: blocks needed, limit: pool
  kIndicesTooShort,  ///< value: entries needed, limit: capacity
};

/// The int32 status that comes with each table. Values over the range of int32 are cut to it.
struct BlockStatus {
  int32_t error;     ///< a BlockError; with one, all sequences are treated as empty
  int32_t sequence;  ///< the first offending sequence, -1 if it is none alone
  int32_t value;
  int32_t limit;
  int32_t blocks_needed;  ///< distinct blocks that the lengths asked for
  int32_t blocks_in_pool;
};
constexpr int64_t kBlockStatusSize = 6;

/// Where the blocks of each sequence come from.
struct BlockPlan {
  int32_t* seq_lens;       ///< [num_seqs] the lengths that hold, shortened where asked
  int32_t* first_entries;  ///< [num_seqs + 1] entries of all sequences before; null: not wanted
  int64_t* own_ordinals;   ///< [num_seqs] ordinal of the first block that is not shared
  BlockStatus* status;
};

/// Blocks that a sequence of `length` tokens takes.
OPREPLAY_HOST_DEVICE int64_t blocks_of(int64_t length, int64_t block_size) {
  return (length + block_size - 1) / block_size;
}

/// Leading blocks that a sequence shares: full ones only, and never the one with its last token,
/// which is still written.
OPREPLAY_HOST_DEVICE int64_t shared_blocks_of(int64_t length, const BlockRequest& request) {
  if (length == 0) return 0;
  const int64_t full = (length - 1) / request.block_size;
  return full < request.shared_prefix_blocks ? full : request.shared_prefix_blocks;
}

/// Sums over all sequences, before anything is shortened.
struct BlockTotals {
  int64_t own;       ///< blocks that belong to one sequence alone
  int64_t nonempty;  ///< sequences with at least one token
  int64_t shared;    ///< distinct shared blocks
};

/// `length` cut to what a row can hold, where the request allows that.
OPREPLAY_HOST_DEVICE int64_t fit_row(int64_t length, const BlockRequest& request) {
  const int64_t most = request.width * request.block_size;
  return request.on_exhausted == OnExhausted::kShrinkLengths && length > most ? most : length;
}

/// What a sequence adds to the totals.
OPREPLAY_HOST_DEVICE BlockTotals row_totals(int64_t length, const BlockRequest& request) {
  const int64_t fitting = fit_row(length, request);
  const int64_t shared = shared_blocks_of(fitting, request);
  return {blocks_of(fitting, request.block_size) - shared, fitting > 0 ? 1 : 0, shared};
}

OPREPLAY_HOST_DEVICE BlockTotals combine_totals(const BlockTotals& a, const BlockTotals& b) {
  return {a.own + b.own, a.nonempty + b.nonempty, a.shared > b.shared ? a.shared : b.shared};
}

/// The length that holds: cut to a row, then shortened so that all sequences together fit into the
/// pool, where the request allows that. Of the blocks left after one for each sequence, each gets
/// its share, rounded down.
OPREPLAY_HOST_DEVICE int64_t final_length(int64_t length,
                                          const BlockTotals& totals,
                                          const BlockRequest& request) {
  const int64_t pool = request.ids.permutation.pool;
  const int64_t fitting = fit_row(length, request);
  if (fitting == 0 || request.on_exhausted != OnExhausted::kShrinkLengths ||
      totals.shared + totals.own <= pool) {
    return fitting;
  }
  const int64_t shared = shared_blocks_of(fitting, request);
  const int64_t own = blocks_of(fitting, request.block_size) - shared;
  const int64_t kept =
      1 + (own - 1) * (pool - totals.shared - totals.nonempty) / (totals.own - totals.nonempty);
  const int64_t most = (shared + kept) * request.block_size;
  return fitting < most ? fitting : most;
}

/// The entry of a row: shared blocks first, then the sequence's own, then block 0, a valid id.
OPREPLAY_HOST_DEVICE int32_t block_entry(
    int64_t column, int64_t blocks, int64_t shared, int64_t own_ordinal, const BlockIds& ids) {
  if (column >= blocks) return 0;
  return block_id(column < shared ? column : own_ordinal + column - shared, ids);
}

OPREPLAY_HOST_DEVICE int32_t cut_to_int32(int64_t value) {
  constexpr int64_t kMost = 2147483647;
  return static_cast<int32_t>(value < kMost ? value : kMost);
}

/// The error of one sequence by itself.
OPREPLAY_HOST_DEVICE BlockStatus row_status(int64_t sequence,
                                            int64_t length,
                                            const BlockRequest& request) {
  const int32_t pool = cut_to_int32(request.ids.permutation.pool);
  const auto at = static_cast<int32_t>(sequence);
  const int64_t blocks = blocks_of(fit_row(length, request), request.block_size);
  if (length < 0) return {kNegativeLength, at, static_cast<int32_t>(length), 0, 0, pool};
  if (blocks > request.width) {
    return {kRowTooWide, at, cut_to_int32(blocks), cut_to_int32(request.width), 0, pool};
  }
  return {kBlocksFit, -1, 0, 0, 0, pool};
}

/// The error of the totals, if each sequence by itself is right.
OPREPLAY_HOST_DEVICE BlockStatus status_of(const BlockTotals& totals, const BlockRequest& request) {
  const int64_t pool = request.ids.permutation.pool;
  const int64_t needed = totals.shared + totals.own;
  BlockStatus status{kBlocksFit, -1, 0, 0, cut_to_int32(needed), cut_to_int32(pool)};
  const bool shrink = request.on_exhausted == OnExhausted::kShrinkLengths;
  const int64_t least = shrink ? totals.shared + totals.nonempty : needed;
  if (request.on_exhausted != OnExhausted::kShare && least > pool) {
    status.error = kPoolExhausted;
    status.value = cut_to_int32(least);
    status.limit = cut_to_int32(pool);
  }
  return status;
}

/// The status of a table whose rows together are longer than its capacity.
OPREPLAY_HOST_DEVICE BlockStatus too_many_entries(BlockStatus status,
                                                  int64_t entries,
                                                  const BlockRequest& request) {
  status.error = kIndicesTooShort;
  status.value = cut_to_int32(entries);
  status.limit = cut_to_int32(request.capacity);
  return status;
}

/// Tokens on the last page. An empty sequence gets a whole page, so that
/// (pages - 1) * page + last is its length, 0.
OPREPLAY_HOST_DEVICE int32_t last_page_length(int64_t length, const BlockRequest& request) {
  const int64_t pages = blocks_of(length, request.block_size);
  return static_cast<int32_t>(length - (pages - 1) * request.block_size);
}

/// The dense form: the plan without first_entries, then the table, [num_seqs, width].
void block_table_cpu(int32_t* table,
                     const int32_t* seq_lens,
                     const BlockRequest& request,
                     const BlockPlan& plan,
                     const ParallelFor& parallel_for);
void block_table_gpu(int32_t* table,
                     const int32_t* seq_lens,
                     const BlockRequest& request,
                     const BlockPlan& plan,
                     void* stream);

/// The compressed form: the plan, whose first_entries are the row pointers, then the indices,
/// [capacity], 0 after the last one, and the tokens on each last page, [num_seqs].
void block_csr_cpu(int32_t* indices,
                   int32_t* last_page_lens,
                   const int32_t* seq_lens,
                   const BlockRequest& request,
                   const BlockPlan& plan,
                   const ParallelFor& parallel_for);
void block_csr_gpu(int32_t* indices,
                   int32_t* last_page_lens,
                   const int32_t* seq_lens,
                   const BlockRequest& request,
                   const BlockPlan& plan,
                   void* stream);

}  // namespace opreplay::kernels
