// SPDX-License-Identifier: MIT
//
// Integer inputs of paged attention, built on the device where they are used. All are int32 unless
// said otherwise, and all are also registered with the dispatcher (torch.ops.opreplay.*).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "opreplay/export.h"

namespace opreplay {

/// How lengths of sequences are chosen.
struct SeqLenOptions {
  std::string kind = "uniform";          ///< "constant" (all are high), "uniform" or "zipf"
  int64_t low = 1;                       ///< shortest length [tokens]
  int64_t high = 1;                      ///< longest length [tokens]
  double s = 1.0;                        ///< exponent of "zipf": P(length v) ~ 1 / v^s
  std::optional<int64_t> total;          ///< sum of all lengths, met exactly
  std::optional<int64_t> total_squares;  ///< sum of their squares, met as closely as possible
  std::optional<int64_t> maximum;        ///< longest length, met exactly by one sequence
  uint64_t seed = 0;
};

/// Lengths of num_seqs sequences, at least 1 each.
///
/// Without `total` they are independent draws. With it they lie on a ramp, clamped to
/// [low, maximum or high] and in random order, whose steepness follows from total_squares, or
/// else from the kind: "constant" is level, "uniform" spans half to one and a half of the mean.
[[nodiscard]] OPREPLAY_API at::Tensor seq_lens(int64_t num_seqs,
                                               const SeqLenOptions& options,
                                               at::Device device = at::kCPU);

/// The same, filling a contiguous int32 tensor; its number of elements is that of the sequences.
OPREPLAY_API void fill_seq_lens(const at::Tensor& out, const SeqLenOptions& options);

/// Which blocks of the pool a batch gets.
struct BlockOptions {
  /// "permuted": random over the whole pool; "contiguous": ascending; "strided": the blocks of a
  /// sequence lie num_seqs apart (or the next number that visits the whole pool).
  std::string order = "permuted";
  bool reserve_block_zero = false;   ///< hand out [1, num_blocks) only
  int64_t shared_prefix_blocks = 0;  ///< leading full blocks that all sequences share
  /// "error"; "shrink_lengths": shorten all in proportion, and to the table's width; "share": begin
  /// again at the first block.
  std::string on_exhausted = "error";
  uint64_t seed = 0;
};

/// A dense block table.
struct BlockTable {
  at::Tensor table;  ///< [B, W] block ids, distinct unless sharing was asked for; 0 after the end
  at::Tensor seq_lens;  ///< [B] the lengths that hold
  at::Tensor status;    ///< [6] see kernels/block_table.h: error, sequence, value, limit, blocks
                        ///< needed, blocks in the pool
};

/// The table of sequences with the given lengths ([B], int32; 0 is a padding row). Without a width
/// it is as wide as the longest needs, which synchronises once on a device. What is wrong with the
/// lengths is thrown on the CPU, and left in the status on a device (the table is then all 0).
[[nodiscard]] OPREPLAY_API BlockTable block_table(const at::Tensor& seq_lens,
                                                  int64_t block_size,
                                                  int64_t num_blocks,
                                                  std::optional<int64_t> width,
                                                  const BlockOptions& options);

/// The same, filling recorded tensors.
OPREPLAY_API void fill_block_table(const BlockTable& out,
                                   const at::Tensor& seq_lens,
                                   int64_t block_size,
                                   int64_t num_blocks,
                                   const BlockOptions& options);

/// A block table in compressed rows.
struct BlockCsr {
  at::Tensor kv_indptr;         ///< [B + 1] where the pages of each sequence begin
  at::Tensor kv_indices;        ///< [length] block ids; 0 after the last page
  at::Tensor kv_last_page_len;  ///< [B] tokens on the last page, 1 to block_size
  at::Tensor seq_lens;          ///< [B] the lengths that hold
  at::Tensor status;            ///< [6] as in BlockTable
};

/// The compressed form. Without a length kv_indices holds just the pages that are there, which
/// synchronises once on a device.
[[nodiscard]] OPREPLAY_API BlockCsr block_csr(const at::Tensor& seq_lens,
                                              int64_t block_size,
                                              int64_t num_blocks,
                                              std::optional<int64_t> length,
                                              const BlockOptions& options);
OPREPLAY_API void fill_block_csr(const BlockCsr& out,
                                 const at::Tensor& seq_lens,
                                 int64_t block_size,
                                 int64_t num_blocks,
                                 const BlockOptions& options);

/// Throws what the status of a block table says, if it says anything. Synchronises on a device.
OPREPLAY_API void check_block_status(const at::Tensor& status);

/// An index tensor and the status ([4]: error, sequence, value, limit) that comes with it.
struct TokenIndex {
  at::Tensor values;
  at::Tensor status;
};

/// Exclusive prefix sums of query lengths, [B + 1].
[[nodiscard]] OPREPLAY_API TokenIndex query_start_loc(const at::Tensor& query_lens);
OPREPLAY_API void fill_query_start_loc(const TokenIndex& out, const at::Tensor& query_lens);

/// Positions of the queries, which are the last tokens of their sequences: [total], int32 or int64,
/// 0 after the last query. Without a total it is the sum, which synchronises once on a device.
[[nodiscard]] OPREPLAY_API TokenIndex positions(const at::Tensor& seq_lens,
                                                const at::Tensor& query_lens,
                                                std::optional<int64_t> total,
                                                at::ScalarType dtype = at::kLong);
OPREPLAY_API void fill_positions(const TokenIndex& out,
                                 const at::Tensor& seq_lens,
                                 const at::Tensor& query_lens);

/// Slots of the cache that the queries are written to: block * block_size + offset; -1 after the
/// last query.
[[nodiscard]] OPREPLAY_API TokenIndex slot_mapping(const at::Tensor& block_table,
                                                   const at::Tensor& seq_lens,
                                                   const at::Tensor& query_lens,
                                                   int64_t block_size,
                                                   std::optional<int64_t> total,
                                                   at::ScalarType dtype = at::kLong);
OPREPLAY_API void fill_slot_mapping(const TokenIndex& out,
                                    const at::Tensor& block_table,
                                    const at::Tensor& seq_lens,
                                    const at::Tensor& query_lens,
                                    int64_t block_size);

/// Slots of all tokens of all sequences, [B, context]; 0 after the last one. Without a context it
/// is what a row of the block table can hold.
[[nodiscard]] OPREPLAY_API TokenIndex req_to_token(const at::Tensor& block_table,
                                                   const at::Tensor& seq_lens,
                                                   int64_t block_size,
                                                   std::optional<int64_t> context);
OPREPLAY_API void fill_req_to_token(const TokenIndex& out,
                                    const at::Tensor& block_table,
                                    const at::Tensor& seq_lens,
                                    int64_t block_size);

/// Throws what the status of a token index says, if it says anything. Synchronises on a device.
OPREPLAY_API void check_token_status(const at::Tensor& status);

}  // namespace opreplay
