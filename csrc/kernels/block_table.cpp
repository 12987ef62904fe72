// SPDX-License-Identifier: MIT
#include "kernels/block_table.h"

#include <algorithm>
#include <cstring>

namespace opreplay::kernels {
namespace {

/// Entries for a thread to be worth waking: about 10 us.
constexpr int64_t kGrain = int64_t{1} << 14;

/// Ids by ordinal, made in long runs and handed out in short ones, because neighbouring rows take
/// neighbouring ordinals.
class IdWindow {
 public:
  explicit IdWindow(const BlockIds& ids) : ids_(ids) {}

  void copy(int32_t* out, int64_t ordinal, int64_t count) {
    while (count > 0) {
      if (count >= kSize && (ordinal < begin_ || ordinal >= end_)) {
        write_block_ids(out, ordinal, count, ids_);
        return;
      }
      if (ordinal < begin_ || ordinal >= end_) {
        write_block_ids(window_, ordinal, kSize, ids_);
        begin_ = ordinal;
        end_ = ordinal + kSize;
      }
      const int64_t piece = std::min(count, end_ - ordinal);
      std::memcpy(out, window_ + (ordinal - begin_), static_cast<size_t>(piece) * sizeof(int32_t));
      out += piece;
      ordinal += piece;
      count -= piece;
    }
  }

 private:
  static constexpr int64_t kSize = 1024;
  const BlockIds& ids_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int32_t window_[kSize];
};

/// Writes the entries [begin, end) of a sequence's row, all of them block ids.
void copy_entries(int32_t* out,
                  int64_t begin,
                  int64_t end,
                  int64_t shared,
                  int64_t own_ordinal,
                  IdWindow& shared_ids,
                  IdWindow& own_ids) {
  const int64_t split = std::clamp(shared, begin, end);
  shared_ids.copy(out, begin, split - begin);
  own_ids.copy(out + (split - begin), own_ordinal + split - shared, end - split);
}

/// The first sequence that is wrong by itself, or else what the totals say.
BlockStatus check_lengths(const int32_t* lens,
                          const BlockTotals& totals,
                          const BlockRequest& request) {
  for (int64_t i = 0; i < request.num_seqs; ++i) {
    const BlockStatus status = row_status(i, lens[i], request);
    if (status.error != kBlocksFit) return status;
  }
  return status_of(totals, request);
}

/// Writes the plan, all sequences empty if there is an error, and returns the entries in all rows.
int64_t write_plan(const int32_t* lens,
                   const BlockTotals& totals,
                   const BlockRequest& request,
                   const BlockPlan& plan) {
  const bool fits = plan.status->error == kBlocksFit;
  int64_t entries = 0;
  int64_t own_ordinal = totals.shared;
  for (int64_t i = 0; i < request.num_seqs; ++i) {
    const int64_t length = fits ? final_length(lens[i], totals, request) : 0;
    const int64_t blocks = blocks_of(length, request.block_size);
    plan.seq_lens[i] = static_cast<int32_t>(length);
    plan.own_ordinals[i] = own_ordinal;
    if (plan.first_entries != nullptr) plan.first_entries[i] = cut_to_int32(entries);
    entries += blocks;
    own_ordinal += blocks - shared_blocks_of(length, request);
  }
  if (plan.first_entries != nullptr) plan.first_entries[request.num_seqs] = cut_to_int32(entries);
  return entries;
}

void plan_blocks(const int32_t* lens, const BlockRequest& request, const BlockPlan& plan) {
  BlockTotals totals{};
  for (int64_t i = 0; i < request.num_seqs; ++i) {
    totals = combine_totals(totals, row_totals(lens[i], request));
  }
  *plan.status = check_lengths(lens, totals, request);
  const int64_t entries = write_plan(lens, totals, request, plan);
  if (entries > request.capacity) {
    *plan.status = too_many_entries(*plan.status, entries, request);
    write_plan(lens, totals, request, plan);
  }
}

}  // namespace

void block_table_cpu(int32_t* table,
                     const int32_t* seq_lens,
                     const BlockRequest& request,
                     const BlockPlan& plan,
                     const ParallelFor& parallel_for) {
  plan_blocks(seq_lens, request, plan);
  const int64_t width = request.width;
  parallel_for(request.num_seqs * width, kGrain, [&](int64_t begin, int64_t end) {
    IdWindow shared_ids(request.ids);
    IdWindow own_ids(request.ids);
    while (begin < end) {
      const int64_t row = begin / width;
      const int64_t column = begin % width;
      const int64_t count = std::min(end - begin, width - column);
      const int64_t length = plan.seq_lens[row];
      const int64_t blocks = blocks_of(length, request.block_size);
      const int64_t filled = std::clamp<int64_t>(blocks - column, 0, count);
      copy_entries(table + begin,
                   column,
                   column + filled,
                   shared_blocks_of(length, request),
                   plan.own_ordinals[row],
                   shared_ids,
                   own_ids);
      std::fill(table + begin + filled, table + begin + count, 0);
      begin += count;
    }
  });
}

void block_csr_cpu(int32_t* indices,
                   int32_t* last_page_lens,
                   const int32_t* seq_lens,
                   const BlockRequest& request,
                   const BlockPlan& plan,
                   const ParallelFor& parallel_for) {
  plan_blocks(seq_lens, request, plan);
  const int32_t* const pointers = plan.first_entries;
  for (int64_t i = 0; i < request.num_seqs; ++i) {
    last_page_lens[i] = last_page_length(plan.seq_lens[i], request);
  }
  parallel_for(request.capacity, kGrain, [&](int64_t begin, int64_t end) {
    IdWindow shared_ids(request.ids);
    IdWindow own_ids(request.ids);
    const int32_t* next = std::upper_bound(pointers, pointers + request.num_seqs + 1, begin);
    while (begin < end && next != pointers + request.num_seqs + 1) {
      const int64_t row = next - pointers - 1;
      const int64_t row_end = std::min<int64_t>(end, *next);
      copy_entries(indices + begin,
                   begin - pointers[row],
                   row_end - pointers[row],
                   shared_blocks_of(plan.seq_lens[row], request),
                   plan.own_ordinals[row],
                   shared_ids,
                   own_ids);
      begin = row_end;
      ++next;
    }
    std::fill(indices + begin, indices + end, 0);
  });
}

}  // namespace opreplay::kernels
