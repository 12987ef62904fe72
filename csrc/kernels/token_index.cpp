// SPDX-License-Identifier: MIT
#include "kernels/token_index.h"

#include <algorithm>

namespace opreplay::kernels {
namespace {

/// Tokens for a thread to be worth waking.
constexpr int64_t kGrain = int64_t{1} << 14;

/// Calls body(sequence, first, last, position) for the tokens [first, last) of each sequence that
/// fall into [begin, end), `position` being that of the first. Returns the end of the last one.
template <class Body>
int64_t for_each_query(
    int64_t begin, int64_t end, const int32_t* starts, const TokenBatch& batch, const Body& body) {
  const int32_t* const starts_end = starts + batch.num_seqs + 1;
  const int32_t* next = std::upper_bound(starts, starts_end, begin);
  while (begin < end && next != starts_end) {
    const int64_t sequence = next - starts - 1;
    const int64_t last = std::min<int64_t>(end, *next);
    body(sequence, begin, last, batch.seq_lens[sequence] - (*next - begin));
    begin = last;
    ++next;
  }
  return begin;
}

/// The first sequence that is wrong by itself.
TokenStatus check_sequences(const TokenBatch& batch) {
  for (int64_t i = 0; i < batch.num_seqs; ++i) {
    const TokenStatus status = token_status(i, batch);
    if (status.error != kTokensFit) return status;
  }
  return {kTokensFit, -1, 0, 0};
}

void write_positions(const IndexOutput& out,
                     const int32_t* starts,
                     const TokenBatch& batch,
                     const ParallelFor& parallel_for) {
  parallel_for(batch.total, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t filled = for_each_query(
        begin, end, starts, batch, [&](int64_t, int64_t first, int64_t last, int64_t position) {
          for (int64_t i = first; i < last; ++i) store_index(out, i, position + (i - first));
        });
    for (int64_t i = filled; i < end; ++i) store_index(out, i, 0);
  });
}

void write_slots(const IndexOutput& out,
                 const int32_t* starts,
                 const SlotTable& table,
                 const TokenBatch& batch,
                 const ParallelFor& parallel_for) {
  // Consecutive inside a block: one look-up for each.
  const auto write_query = [&](int64_t sequence, int64_t first, int64_t last, int64_t position) {
    while (first < last) {
      const int64_t in_block = table.block_size - position % table.block_size;
      const int64_t run = std::min(last - first, in_block);
      const int64_t slot = slot_of(sequence, position, table);
      for (int64_t i = 0; i < run; ++i) store_index(out, first + i, slot + i);
      first += run;
      position += run;
    }
  };
  parallel_for(batch.total, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t filled = for_each_query(begin, end, starts, batch, write_query);
    for (int64_t i = filled; i < end; ++i) store_index(out, i, -1);
  });
}

}  // namespace

void query_starts_cpu(int32_t* starts, TokenStatus* status, const TokenBatch& batch) {
  int64_t total = 0;
  for (int64_t i = 0; i < batch.num_seqs; ++i) {
    starts[i] = cut_to_int32(total);
    total += batch.query_lens[i];
  }
  starts[batch.num_seqs] = cut_to_int32(total);
  *status = check_sequences(batch);
  if (status->error == kTokensFit) *status = total_status(total, batch);
  if (status->error != kTokensFit) std::fill(starts, starts + batch.num_seqs + 1, 0);
}

void token_index_cpu(const IndexOutput& out,
                     int32_t* starts,
                     TokenStatus* status,
                     const SlotTable& table,
                     const TokenBatch& batch,
                     const ParallelFor& parallel_for) {
  query_starts_cpu(starts, status, batch);
  if (table.block_size == 0) {
    write_positions(out, starts, batch, parallel_for);
  } else {
    write_slots(out, starts, table, batch, parallel_for);
  }
}

void request_slots_cpu(int32_t* slots,
                       TokenStatus* status,
                       int64_t context,
                       const SlotTable& table,
                       const TokenBatch& batch,
                       const ParallelFor& parallel_for) {
  *status = check_sequences(batch);
  const bool fits = status->error == kTokensFit;
  parallel_for(batch.num_seqs * context, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t sequence = begin / context;
      const int64_t position = begin % context;
      const int64_t row_end = std::min(end, begin - position + context);
      const int64_t length = fits ? batch.seq_lens[sequence] : 0;
      const int64_t filled = std::clamp(begin + length - position, begin, row_end);
      for (int64_t i = begin; i < filled;) {
        const int64_t at = position + (i - begin);
        const int64_t run = std::min(filled - i, table.block_size - at % table.block_size);
        const auto slot = static_cast<int32_t>(slot_of(sequence, at, table));
        for (int64_t j = 0; j < run; ++j) slots[i + j] = slot + static_cast<int32_t>(j);
        i += run;
      }
      std::fill(slots + filled, slots + row_end, 0);
      begin = row_end;
    }
  });
}

}  // namespace opreplay::kernels
