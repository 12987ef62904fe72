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

/// A block table to look slots up in. A block size of 0 says that there is none (an empty table has
/// no pointer either).
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

/// The status of a batch whose queries do not fit into the output.
OPREPLAY_HOST_DEVICE TokenStatus total_status(int64_t tokens, const TokenBatch& batch) {
  if (tokens <= batch.total) return {kTokensFit, -1, 0, 0};
  return {kTooManyTokens, -1, cut_to_int32(tokens), cut_to_int32(batch.total)};
}

/// Exclusive prefix sums of the query lengths, [num_seqs + 1].
void query_starts_cpu(int32_t* starts, TokenStatus* status, const TokenBatch& batch);
void query_starts_gpu(int32_t* starts, TokenStatus* status, const TokenBatch& batch, void* stream);

/// Without a table the position of each token, and 0 after the last one. With a
/// table the slot of each token, and -1, which kernels skip, after the last one. `starts` is
/// scratch memory, [num_seqs + 1].
void token_index_cpu(const IndexOutput& out,
                     int32_t* starts,
                     TokenStatus* status,
                     const SlotTable& table,
                     const TokenBatch& batch,
                     const ParallelFor& parallel_for);
void token_index_gpu(const IndexOutput& out,
                     int32_t* starts,
                     TokenStatus* status,
                     const SlotTable& table,
                     const TokenBatch& batch,
                     void* stream);

/// Slots of all positions of all sequences, [num_seqs, context]; 0 after the last one. The batch's
/// queries are its sequences. Where one is longer than its row, all are empty.
void request_slots_cpu(int32_t* slots,
                       TokenStatus* status,
                       int64_t context,
                       const SlotTable& table,
                       const TokenBatch& batch,
                       const ParallelFor& parallel_for);
void request_slots_gpu(int32_t* slots,
                       TokenStatus* status,
                       int64_t context,
                       const SlotTable& table,
                       const TokenBatch& batch,
                       void* stream);

}  // namespace opreplay::kernels
