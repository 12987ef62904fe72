// SPDX-License-Identifier: MIT
#include "kernels/block_combine.h"
#include "kernels/block_scan.h"
#include "kernels/block_table.h"
#include "kernels/gpu.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kNone = INT64_MAX;

/// Totals of some sequences, and the first that is wrong by itself.
struct LengthSums {
  BlockTotals totals{};
  int64_t first_wrong = kNone;
};

OPREPLAY_DEVICE LengthSums combine(const LengthSums& a, const LengthSums& b) {
  return {combine_totals(a.totals, b.totals),
          a.first_wrong < b.first_wrong ? a.first_wrong : b.first_wrong};
}

/// Entries and own blocks of some sequences.
struct EntrySums {
  int64_t entries = 0;
  int64_t own = 0;
};

OPREPLAY_DEVICE EntrySums combine(const EntrySums& a, const EntrySums& b) {
  return {a.entries + b.entries, a.own + b.own};
}

/// Shared memory of a block that plans: the partial results of its threads, and for a small batch
/// the plan itself.
struct SharedPlan {
  LengthSums* partial_lengths;
  EntrySums* partial_entries;  ///< the same memory, used later
  BlockPlan plan;
};

OPREPLAY_DEVICE SharedPlan shared_plan(int64_t num_seqs) {
  auto* const memory = static_cast<unsigned char*>(gpu::shared_memory());
  auto* const status = memory + gpu::threads_per_block() * sizeof(LengthSums);
  auto* const ordinals = status + 32;  // a status, and aligned to 8
  auto* const lens = ordinals + num_seqs * sizeof(int64_t);
  auto* const first_entries = lens + num_seqs * sizeof(int32_t);
  return {reinterpret_cast<LengthSums*>(memory),
          reinterpret_cast<EntrySums*>(memory),
          {reinterpret_cast<int32_t*>(lens),
           reinterpret_cast<int32_t*>(first_entries),
           reinterpret_cast<int64_t*>(ordinals),
           reinterpret_cast<BlockStatus*>(status)}};
}

/// Bytes of shared_plan() for `planned` sequences.
uint32_t shared_plan_bytes(uint32_t threads, int64_t planned) {
  static_assert(sizeof(BlockStatus) <= 32 && sizeof(EntrySums) <= sizeof(LengthSums));
  return static_cast<uint32_t>(threads * sizeof(LengthSums) + 32 +
                               static_cast<size_t>(planned) * 16 + 8);
}

/// The whole block writes a plan; it is complete when the call returns.
OPREPLAY_DEVICE void plan_rows(const int32_t* lens,
                               const BlockRequest& request,
                               const BlockPlan& plan,
                               const SharedPlan& shared) {
  const ThreadRun run = thread_run(request.num_seqs);
  LengthSums sums;
  for (int64_t i = run.begin; i < run.end; ++i) {
    sums.totals = combine_totals(sums.totals, row_totals(lens[i], request));
    const bool wrong = row_status(i, lens[i], request).error != kBlocksFit;
    if (wrong && sums.first_wrong == kNone) sums.first_wrong = i;
  }
  const LengthSums all = combine_block(sums, shared.partial_lengths).all;
  BlockStatus status = all.first_wrong == kNone
                           ? status_of(all.totals, request)
                           : row_status(all.first_wrong, lens[all.first_wrong], request);

  bool fits = status.error == kBlocksFit;
  EntrySums mine;
  for (int64_t i = run.begin; fits && i < run.end; ++i) {
    const int64_t length = final_length(lens[i], all.totals, request);
    const int64_t blocks = blocks_of(length, request.block_size);
    mine = combine(mine, {blocks, blocks - shared_blocks_of(length, request)});
  }
  const Combined<EntrySums> entries = combine_block(mine, shared.partial_entries);
  if (entries.all.entries > request.capacity) {
    status = too_many_entries(status, entries.all.entries, request);
    fits = false;
  }

  EntrySums before = fits ? entries.before : EntrySums{};
  for (int64_t i = run.begin; i < run.end; ++i) {
    const int64_t length = fits ? final_length(lens[i], all.totals, request) : 0;
    const int64_t blocks = blocks_of(length, request.block_size);
    plan.seq_lens[i] = static_cast<int32_t>(length);
    plan.own_ordinals[i] = all.totals.shared + before.own;
    if (plan.first_entries != nullptr) plan.first_entries[i] = cut_to_int32(before.entries);
    before = combine(before, {blocks, blocks - shared_blocks_of(length, request)});
  }
  if (gpu::thread_id() == 0) {
    *plan.status = status;
    if (plan.first_entries != nullptr) {
      plan.first_entries[request.num_seqs] = fits ? cut_to_int32(entries.all.entries) : 0;
    }
  }
  gpu::barrier();
}

/// One block: the plan of a large batch.
OPREPLAY_KERNEL void plan_kernel(const int32_t* lens, BlockRequest request, BlockPlan plan) {
  plan_rows(lens, request, plan, shared_plan(0));
}

/// The plan that a fill kernel reads. A small batch is planned here, by each block for itself, and
/// the first block hands the plan out.
OPREPLAY_DEVICE BlockPlan plan_to_read(const int32_t* lens,
                                       const BlockRequest& request,
                                       const BlockPlan& plan) {
  if (request.num_seqs > kSmallBatch) return plan;
  const SharedPlan shared = shared_plan(request.num_seqs);
  plan_rows(lens, request, shared.plan, shared);
  if (gpu::block_id() == 0) {
    for (int64_t i = gpu::thread_id(); i < request.num_seqs; i += gpu::threads_per_block()) {
      plan.seq_lens[i] = shared.plan.seq_lens[i];
    }
    if (plan.first_entries != nullptr) {
      for (int64_t i = gpu::thread_id(); i <= request.num_seqs; i += gpu::threads_per_block()) {
        plan.first_entries[i] = shared.plan.first_entries[i];
      }
    }
    if (gpu::thread_id() == 0) *plan.status = *shared.plan.status;
  }
  return shared.plan;
}

/// One thread for each entry of the table.
OPREPLAY_KERNEL void table_kernel(int32_t* table,
                                  const int32_t* lens,
                                  BlockRequest request,
                                  BlockPlan handed_out) {
  const BlockPlan plan = plan_to_read(lens, request, handed_out);
  const int64_t entries = request.num_seqs * request.width;
  for (int64_t i = gpu::global_id(); i < entries; i += gpu::global_size()) {
    const int64_t row = i / request.width;
    const int64_t length = plan.seq_lens[row];
    table[i] = block_entry(i - row * request.width,
                           blocks_of(length, request.block_size),
                           shared_blocks_of(length, request),
                           plan.own_ordinals[row],
                           request.ids);
  }
}

/// One thread for each entry of the indices, and for each last page.
OPREPLAY_KERNEL void csr_kernel(int32_t* indices,
                                int32_t* last_page_lens,
                                const int32_t* lens,
                                BlockRequest request,
                                BlockPlan handed_out) {
  const BlockPlan plan = plan_to_read(lens, request, handed_out);
  const int64_t num_seqs = request.num_seqs;
  for (int64_t i = gpu::global_id(); i < num_seqs; i += gpu::global_size()) {
    last_page_lens[i] = last_page_length(plan.seq_lens[i], request);
  }
  const int64_t total = plan.first_entries[num_seqs];
  for (int64_t i = gpu::global_id(); i < request.capacity; i += gpu::global_size()) {
    if (i >= total) {
      indices[i] = 0;
      continue;
    }
    const int64_t row = last_not_above(plan.first_entries, static_cast<int32_t>(num_seqs), i);
    const int64_t length = plan.seq_lens[row];
    indices[i] = block_entry(i - plan.first_entries[row],
                             blocks_of(length, request.block_size),
                             shared_blocks_of(length, request),
                             plan.own_ordinals[row],
                             request.ids);
  }
}

/// Plans a large batch ahead. Returns the bytes of shared memory that the fill kernel needs.
uint32_t plan_ahead(const int32_t* lens,
                    const BlockRequest& request,
                    const BlockPlan& plan,
                    void* stream) {
  const uint32_t threads = gpu::default_threads();
  if (request.num_seqs <= kSmallBatch) return shared_plan_bytes(threads, request.num_seqs);
  gpu::launch(plan_kernel, 1, threads, shared_plan_bytes(threads, 0), stream, lens, request, plan);
  return 0;
}

}  // namespace

void block_table_gpu(int32_t* table,
                     const int32_t* seq_lens,
                     const BlockRequest& request,
                     const BlockPlan& plan,
                     void* stream) {
  const uint32_t shared_bytes = plan_ahead(seq_lens, request, plan, stream);
  gpu::launch(table_kernel,
              gpu::blocks_for(request.num_seqs * request.width),
              gpu::default_threads(),
              shared_bytes,
              stream,
              table,
              seq_lens,
              request,
              plan);
}

void block_csr_gpu(int32_t* indices,
                   int32_t* last_page_lens,
                   const int32_t* seq_lens,
                   const BlockRequest& request,
                   const BlockPlan& plan,
                   void* stream) {
  const uint32_t shared_bytes = plan_ahead(seq_lens, request, plan, stream);
  gpu::launch(csr_kernel,
              gpu::blocks_for(request.capacity),
              gpu::default_threads(),
              shared_bytes,
              stream,
              indices,
              last_page_lens,
              seq_lens,
              request,
              plan);
}

}  // namespace opreplay::kernels
