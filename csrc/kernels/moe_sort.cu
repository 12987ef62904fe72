// SPDX-License-Identifier: MIT
//
// A small sort is one launch of one block that keeps all in shared memory. A large one is six
// launches:
//   number bins -> count per chunk -> sum along the chunks -> lay out the bins -> place per chunk
//   -> pad
// The order is stable without any order among threads: a tile of pairs sets one bit for each pair
// in its expert's mask, and the rank of a pair is the number of bits below its own.
#include "kernels/block_scan.h"
#include "kernels/gpu.h"
#include "kernels/moe_sort.h"
#include "kernels/moe_sort_entry.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kChunks = 512;      // of a large sort, at most: enough to fill a GPU
constexpr int32_t kExtraColumns = 2;  // pairs dropped, ids outside

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// 32-bit words of a mask with one bit for each thread of a block.
OPREPLAY_HOST_DEVICE uint32_t mask_words(uint32_t threads) { return (threads + 31) / 32; }

/// What a large sort keeps in global memory between its launches.
struct Workspace {
  int32_t* bins;  ///< [num_experts]: bin of each expert, num_experts if its pairs are dropped
  int32_t*
      chunks;  ///< [num_experts + kExtraColumns, num_chunks]: counts, then sums before each chunk
  int32_t* counts;  ///< [num_experts + kExtraColumns]
  int32_t* starts;  ///< [num_experts + 1]
  int64_t num_chunks;
  int64_t chunk_pairs;  ///< a multiple of top_k
};

/// Column in which a pair counts: its bin, or one of the two that are not placed.
OPREPLAY_DEVICE int32_t column_of(const MoeSortInput& in, const int32_t* bins, int64_t pair) {
  const int32_t id = in.topk_ids[pair];
  return id >= 0 && id < in.num_experts ? bins[id] : in.num_experts + 1;
}

/// By all threads of one block. `scratch` holds num_experts ints, `partial` one for each thread.
OPREPLAY_DEVICE void number_bins(const MoeSortInput& in,
                                 int32_t* bins,
                                 int32_t* scratch,
                                 int32_t* partial) {
  const bool masked = in.table == ExpertTable::kMask;
  if (masked) {
    for (int32_t e = gpu::thread_id(); e < in.num_experts; e += gpu::threads_per_block()) {
      scratch[e] = in.expert_table[e] != 0;
    }
    exclusive_scan(scratch, in.num_experts, partial);
  }
  for (int32_t e = gpu::thread_id(); e < in.num_experts; e += gpu::threads_per_block()) {
    int32_t bin = e;
    if (in.table == ExpertTable::kMap) bin = in.expert_table[e];
    if (masked) bin = in.expert_table[e] != 0 ? scratch[e] : in.num_experts;
    bins[e] = bin >= 0 && bin < in.num_experts ? bin : in.num_experts;
  }
  gpu::barrier();
}

/// Turns counts into starts, by all threads of one block, and writes what is known of each expert
/// and of the whole. `starts` gets num_experts + 1 entries.
OPREPLAY_DEVICE void lay_out(const MoeSortInput& in,
                             const MoeSortOutput& out,
                             const int32_t* counts,
                             int32_t* starts,
                             int32_t* partial) {
  gpu::barrier();
  for (int32_t e = gpu::thread_id(); e < in.num_experts; e += gpu::threads_per_block()) {
    starts[e] = round_up(counts[e], in.block_size);
  }
  const int32_t total = exclusive_scan(starts, in.num_experts, partial);
  for (int32_t e = gpu::thread_id(); e < in.num_experts; e += gpu::threads_per_block()) {
    write_expert(out, e, counts[e], starts[e], round_up(counts[e], in.block_size));
  }
  if (gpu::thread_id() == 0) {
    starts[in.num_experts] = total;
    write_totals(in, out, total, sorted_tokens(in), counts[in.num_experts + 1]);
    out.status[kStatusRepeated] = 0;
  }
  gpu::barrier();
}

OPREPLAY_DEVICE bool repeats(const MoeSortInput& in, int64_t pair) {
  const int64_t row = pair / in.top_k * in.top_k;
  for (int64_t earlier = row; earlier < pair; ++earlier) {
    if (in.topk_ids[earlier] == in.topk_ids[pair]) return true;
  }
  return false;
}

OPREPLAY_DEVICE void place_pair(const MoeSortInput& in,
                                const MoeSortOutput& out,
                                int64_t pair,
                                int32_t position) {
  if (is_packed(in.format)) {
    if (repeats(in, pair)) gpu::atomic_add(&out.status[kStatusRepeated], 1);
  }
  if (out.sorted_ids != nullptr && position < out.length) {
    out.sorted_ids[position] =
        is_packed(in.format) ? packed_entry(pair / in.top_k, static_cast<int32_t>(pair % in.top_k))
                             : static_cast<int32_t>(pair);
    if (out.sorted_weights != nullptr) out.sorted_weights[position] = in.topk_weights[pair];
  }
  if (out.inverse != nullptr) out.inverse[pair] = position;
}

/// Places the pairs [begin, end) whose bin is in [first_bin, first_bin + num_bins), one tile of as
/// many pairs as the block has threads after the other. Shared memory: `cursors` [num_bins] says
/// where the next pair of a bin goes, `masks` [num_bins, mask_words] is all zero, before and after.
OPREPLAY_DEVICE void place_pairs(const MoeSortInput& in,
                                 const MoeSortOutput& out,
                                 const int32_t* bins,
                                 int64_t begin,
                                 int64_t end,
                                 int32_t first_bin,
                                 int32_t num_bins,
                                 int32_t* cursors,
                                 uint32_t* masks) {
  const uint32_t thread = gpu::thread_id();
  const uint32_t threads = gpu::threads_per_block();
  const uint32_t words = mask_words(threads);
  const uint32_t my_word = thread / 32;
  const uint32_t my_bit = 1u << thread % 32;

  for (int64_t tile = begin; tile < end; tile += threads) {
    const int64_t pair = tile + thread;
    const int32_t bin = pair < end ? column_of(in, bins, pair) - first_bin : -1;
    const bool mine = bin >= 0 && bin < num_bins && bin + first_bin < in.num_experts;
    uint32_t* mask = mine ? masks + static_cast<int64_t>(bin) * words : nullptr;
    if (mine) gpu::atomic_or(&mask[my_word], my_bit);
    gpu::barrier();

    bool last = false;
    uint32_t rank = 0;
    if (mine) {
      uint32_t after = gpu::popcount(mask[my_word] & ~(my_bit | (my_bit - 1)));
      rank = gpu::popcount(mask[my_word] & (my_bit - 1));
      for (uint32_t word = 0; word < my_word; ++word) rank += gpu::popcount(mask[word]);
      for (uint32_t word = my_word + 1; word < words; ++word) after += gpu::popcount(mask[word]);
      last = after == 0;
      place_pair(in, out, pair, cursors[bin] + static_cast<int32_t>(rank));
    } else if (pair < end && out.inverse != nullptr && first_bin == 0 &&
               column_of(in, bins, pair) >= in.num_experts) {
      out.inverse[pair] = -1;
    }
    gpu::barrier();

    if (last) {
      cursors[bin] += static_cast<int32_t>(rank) + 1;
      for (uint32_t word = 0; word < words; ++word) mask[word] = 0;
    }
    gpu::barrier();
  }
}

/// Fills what no pair fills: one thread for each entry of the buffers.
OPREPLAY_DEVICE void pad(const MoeSortInput& in,
                         const MoeSortOutput& out,
                         const int32_t* counts,
                         const int32_t* starts,
                         int64_t first,
                         int64_t step) {
  const int64_t total = starts[in.num_experts];
  const int64_t tokens = sorted_tokens(in);
  const int64_t named = out.block_experts != nullptr ? out.num_blocks * in.block_size : 0;
  const int64_t entries = out.length > named ? out.length : named;
  for (int64_t i = first; i < entries; i += step) {
    const int32_t bin = i < total ? last_not_above(starts, in.num_experts, i) : in.num_experts;
    if (i < named && i % in.block_size == 0) {
      out.block_experts[i / in.block_size] =
          bin < in.num_experts ? block_name(in, bin) : unused_block_name(in);
    }
    if (i >= out.length || (bin < in.num_experts && i < starts[bin] + counts[bin])) continue;
    if (out.sorted_ids != nullptr) out.sorted_ids[i] = padding_entry(in, tokens);
    if (out.sorted_weights != nullptr) out.sorted_weights[i] = 0.0F;
  }
  if (out.inverse == nullptr) return;
  for (int64_t pair = tokens * in.top_k + first; pair < in.tokens * in.top_k; pair += step) {
    out.inverse[pair] = -1;
  }
}

OPREPLAY_KERNEL void number_bins_kernel(MoeSortInput in, Workspace work) {
  // The layout is made two launches later: until then its place is free.
  number_bins(in, work.bins, work.starts, static_cast<int32_t*>(gpu::shared_memory()));
}

/// One block for each chunk; as many bins at a time as shared memory holds.
OPREPLAY_KERNEL void count_kernel(MoeSortInput in, Workspace work, int32_t bins_at_once) {
  auto* counts = static_cast<int32_t*>(gpu::shared_memory());
  const int32_t columns = in.num_experts + kExtraColumns;
  const int64_t pairs = sorted_tokens(in) * in.top_k;
  const int64_t begin = work.chunk_pairs * gpu::block_id();
  const int64_t end = begin + work.chunk_pairs < pairs ? begin + work.chunk_pairs : pairs;
  for (int32_t first = 0; first < columns; first += bins_at_once) {
    const int32_t here = columns - first < bins_at_once ? columns - first : bins_at_once;
    for (int32_t i = gpu::thread_id(); i < here; i += gpu::threads_per_block()) counts[i] = 0;
    gpu::barrier();
    for (int64_t pair = begin + gpu::thread_id(); pair < end; pair += gpu::threads_per_block()) {
      const int32_t column = column_of(in, work.bins, pair) - first;
      if (column >= 0 && column < here) gpu::atomic_add(&counts[column], 1);
    }
    gpu::barrier();
    for (int32_t i = gpu::thread_id(); i < here; i += gpu::threads_per_block()) {
      work.chunks[(first + i) * work.num_chunks + gpu::block_id()] = counts[i];
    }
    gpu::barrier();
  }
}

/// One block for each column: the sum over the chunks before each chunk.
OPREPLAY_KERNEL void sum_chunks_kernel(MoeSortInput in, Workspace work) {
  auto* partial = static_cast<int32_t*>(gpu::shared_memory());
  const int32_t columns = in.num_experts + kExtraColumns;
  for (int32_t column = gpu::block_id(); column < columns; column += gpu::blocks_per_grid()) {
    const int32_t total =
        exclusive_scan(work.chunks + column * work.num_chunks, work.num_chunks, partial);
    if (gpu::thread_id() == 0) work.counts[column] = total;
  }
}

OPREPLAY_KERNEL void lay_out_kernel(MoeSortInput in, MoeSortOutput out, Workspace work) {
  lay_out(in, out, work.counts, work.starts, static_cast<int32_t*>(gpu::shared_memory()));
}

/// One block for each chunk; as many bins at a time as shared memory holds.
OPREPLAY_KERNEL void place_kernel(MoeSortInput in,
                                  MoeSortOutput out,
                                  Workspace work,
                                  int32_t bins_at_once) {
  auto* cursors = static_cast<int32_t*>(gpu::shared_memory());
  auto* masks = reinterpret_cast<uint32_t*>(cursors + bins_at_once);
  const int64_t pairs = sorted_tokens(in) * in.top_k;
  const int64_t begin = work.chunk_pairs * gpu::block_id();
  const int64_t end = begin + work.chunk_pairs < pairs ? begin + work.chunk_pairs : pairs;
  const auto words = static_cast<int32_t>(mask_words(gpu::threads_per_block()));
  for (int32_t i = gpu::thread_id(); i < bins_at_once * words; i += gpu::threads_per_block()) {
    masks[i] = 0;
  }
  for (int32_t first = 0; first < in.num_experts; first += bins_at_once) {
    for (int32_t i = gpu::thread_id(); i < bins_at_once; i += gpu::threads_per_block()) {
      const int32_t bin = first + i;
      if (bin >= in.num_experts) continue;
      cursors[i] = work.starts[bin] + work.chunks[bin * work.num_chunks + gpu::block_id()];
    }
    gpu::barrier();
    place_pairs(in, out, work.bins, begin, end, first, bins_at_once, cursors, masks);
  }
}

OPREPLAY_KERNEL void pad_kernel(MoeSortInput in, MoeSortOutput out, Workspace work) {
  pad(in, out, work.counts, work.starts, gpu::global_id(), gpu::global_size());
}

/// The whole sort by one block.
OPREPLAY_KERNEL void small_sort_kernel(MoeSortInput in, MoeSortOutput out) {
  const int32_t experts = in.num_experts;
  const uint32_t threads = gpu::threads_per_block();
  const auto words = static_cast<int32_t>(mask_words(threads));
  auto* partial = static_cast<int32_t*>(gpu::shared_memory());
  int32_t* bins = partial + threads;
  int32_t* counts = bins + experts;
  int32_t* starts = counts + experts + kExtraColumns;
  int32_t* cursors = starts + experts + 1;
  auto* masks = reinterpret_cast<uint32_t*>(cursors + experts);

  number_bins(in, bins, starts, partial);
  for (int32_t i = gpu::thread_id(); i < experts + kExtraColumns; i += threads) counts[i] = 0;
  for (int32_t i = gpu::thread_id(); i < experts * words; i += threads) masks[i] = 0;
  gpu::barrier();
  const int64_t pairs = sorted_tokens(in) * in.top_k;
  for (int64_t pair = gpu::thread_id(); pair < pairs; pair += threads) {
    gpu::atomic_add(&counts[column_of(in, bins, pair)], 1);
  }
  lay_out(in, out, counts, starts, partial);
  for (int32_t i = gpu::thread_id(); i < experts; i += threads) cursors[i] = starts[i];
  gpu::barrier();
  place_pairs(in, out, bins, 0, pairs, 0, experts, cursors, masks);
  pad(in, out, counts, starts, gpu::thread_id(), threads);
}

int64_t shared_ints() { return static_cast<int64_t>(gpu::shared_limit() / sizeof(int32_t)); }

int64_t small_sort_ints(const MoeSortInput& in) {
  const uint32_t threads = gpu::default_threads();
  return threads + int64_t{in.num_experts} * (4 + mask_words(threads)) + kExtraColumns + 1;
}

bool is_small(const MoeSortInput& in) {
  return in.tokens * in.top_k <= gpu::one_block_items() && small_sort_ints(in) <= shared_ints();
}

Workspace split_workspace(const MoeSortInput& in, int32_t* memory) {
  Workspace work;
  const int64_t blocks = gpu::default_blocks();
  const int64_t chunks = blocks < kChunks ? blocks : kChunks;
  const int64_t tokens = in.tokens < chunks ? 1 : ceil_div(in.tokens, chunks);
  work.chunk_pairs = tokens * in.top_k;
  work.num_chunks = in.tokens == 0 ? 1 : ceil_div(in.tokens, tokens);
  work.bins = memory;
  work.counts = work.bins + in.num_experts;
  work.starts = work.counts + in.num_experts + kExtraColumns;
  work.chunks = work.starts + in.num_experts + 1;
  return work;
}

}  // namespace

int64_t moe_sort_workspace_gpu(const MoeSortInput& in) {
  if (is_small(in)) return 0;
  const int64_t experts = in.num_experts;
  return 3 * experts + kExtraColumns + 1 +
         (experts + kExtraColumns) * split_workspace(in, nullptr).num_chunks;
}

void moe_sort_gpu(const MoeSortInput& in,
                  const MoeSortOutput& out,
                  int32_t* workspace,
                  void* stream) {
  const uint32_t threads = gpu::default_threads();
  if (is_small(in)) {
    const auto bytes = static_cast<size_t>(small_sort_ints(in)) * sizeof(int32_t);
    gpu::launch(small_sort_kernel, 1, threads, bytes, stream, in, out);
    return;
  }
  const Workspace work = split_workspace(in, workspace);
  const auto chunks = static_cast<uint32_t>(work.num_chunks);
  const size_t partial_bytes = threads * sizeof(int32_t);
  gpu::launch(number_bins_kernel, 1, threads, partial_bytes, stream, in, work);

  const int32_t columns = in.num_experts + kExtraColumns;
  const int32_t counted = columns < shared_ints() ? columns : static_cast<int32_t>(shared_ints());
  const size_t count_bytes = static_cast<size_t>(counted) * sizeof(int32_t);
  gpu::launch(count_kernel, chunks, threads, count_bytes, stream, in, work, counted);

  const auto column_blocks = static_cast<uint32_t>(columns);
  const uint32_t sum_blocks =
      column_blocks < gpu::default_blocks() ? column_blocks : gpu::default_blocks();
  gpu::launch(sum_chunks_kernel, sum_blocks, threads, partial_bytes, stream, in, work);
  gpu::launch(lay_out_kernel, 1, threads, partial_bytes, stream, in, out, work);

  const int64_t ints_per_bin = 1 + mask_words(threads);
  const int64_t room = shared_ints() / ints_per_bin;
  const int32_t placed = in.num_experts < room ? in.num_experts : static_cast<int32_t>(room);
  const size_t place_bytes = static_cast<size_t>(placed * ints_per_bin) * sizeof(int32_t);
  gpu::launch(place_kernel, chunks, threads, place_bytes, stream, in, out, work, placed);
  const int64_t entries = out.length > in.tokens * in.top_k ? out.length : in.tokens * in.top_k;
  gpu::launch(pad_kernel, gpu::blocks_for(entries), threads, partial_bytes, stream, in, out, work);
}

}  // namespace opreplay::kernels
