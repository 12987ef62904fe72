// SPDX-License-Identifier: MIT
//
// What a kernel knows of each token of a batch: where its sequence's queries start, its position,
// the slot of the KV cache that it is written to.
#pragma once

#include <cstdint>

#include "kernels/block_table.h"
#include "kernels/gpu.h"
#include "kernels/parallel.h"

namespace opreplay::kernels {

/// What is wrong with lengths of queries and sequences, if anything.
enum TokenError : int32_t {
  kTokensFit,
  kNegativeQuery,  ///< value: the query length
  kQueryTooLong,   ///< value: the query length, limit: length of its sequence
  kTooManyTokens,  ///< value: tokens, limit: entries of the output
  kBeyondTable,    ///< value: length of the sequence, limit: tokens that a table row can hold
};

/// The int32 status of a batch of queries.
struct TokenStatus {
  int32_t error;     ///< a TokenError; with one, there are no tokens
  int32_t sequence;  ///< the first offending sequence, -1 if it is none alone
  int32_t value;
  int32_t limit;
};
constexpr int64_t kTokenStatusSize = 4;

/// A batch of queries, each the last tokens of its sequence.
struct TokenBatch {
  int64_t num_seqs;
  const int32_t* seq_lens;  ///< null: not known, nothing is checked against them
  const int32_t* query_lens;
  int64_t total;       ///< entries of the output
  int64_t row_tokens;  ///< tokens that a row of the block table can hold
};

/// A block table to look slots up in.
struct SlotTable {
  const int32_t* blocks;  ///< [num_seqs, width]
  int64_t width;
  int64_t block_size;
};

/// An output of int32 or int64.
struct IndexOutput {
  void* data;
  bool wide;
};

OPREPLAY_HOST_DEVICE void store_index(const IndexOutput& out, int64_t at, int64_t value) {
  if (out.wide) {
    static_cast<int64_t*>(out.data)[at] = value;
  } else {
    static_cast<int32_t*>(out.data)[at] = static_cast<int32_t>(value);
  }
}

/// The error of one sequence.
OPREPLAY_HOST_DEVICE TokenStatus token_status(int64_t sequence, const TokenBatch& batch) {
  const int32_t query = batch.query_lens[sequence];
  const auto at = static_cast<int32_t>(sequence);
  if (query < 0) return {kNegativeQuery, at, query, 0};
  if (batch.seq_lens == nullptr) return {kTokensFit, -1, 0, 0};
  const int32_t length = batch.seq_lens[sequence];
  if (query > length) return {kQueryTooLong, at, query, length};
  if (length > batch.row_tokens) return {kBeyondTable, at, length, cut_to_int32(batch.row_tokens)};
  return {kTokensFit, -1, 0, 0};
}

/// Slot of the cache for a position of a sequence.
OPREPLAY_HOST_DEVICE int64_t slot_of(int64_t sequence, int64_t position, const SlotTable& table) {
  const int64_t block = table.blocks[sequence * table.width + position / table.block_size];
  return block * table.block_size + position % table.block_size;
}

// The CPU twins.

/// Exclusive prefix sums, [num_seqs + 1].
void fill_query_starts_cpu(int32_t* starts, TokenStatus* status, const TokenBatch& batch);

/// Position of each token in its sequence; 0 after the last token.
void fill_positions_cpu(const IndexOutput& out,
                        const int32_t* starts,
                        const TokenBatch& batch,
                        const ParallelFor& parallel_for);

/// Slot of each token; -1, which kernels skip, after the last token.
void fill_slots_cpu(const IndexOutput& out,
                    const int32_t* starts,
                    const SlotTable& table,
                    const TokenBatch& batch,
                    const ParallelFor& parallel_for);

/// Slots of all positions of all sequences, [num_seqs, context]; 0 after the last one. A sequence
/// longer than the context is an error, and then all are empty.
void fill_request_slots_cpu(int32_t* slots,
                            TokenStatus* status,
                            int64_t context,
                            const SlotTable& table,
                            const TokenBatch& batch,
                            const ParallelFor& parallel_for);

}  // namespace opreplay::kernels
