// SPDX-License-Identifier: MIT
#include "kernels/block_combine.h"
#include "kernels/block_scan.h"
#include "kernels/gpu.h"
#include "kernels/token_index.h"

namespace opreplay::kernels {
namespace {

constexpr int64_t kNone = INT64_MAX;

/// Tokens of some sequences, and the first that is wrong by itself.
struct TokenSums {
  int64_t tokens = 0;
  int64_t first_wrong = kNone;
};

OPREPLAY_DEVICE TokenSums combine(const TokenSums& a, const TokenSums& b) {
  return {a.tokens + b.tokens, a.first_wrong < b.first_wrong ? a.first_wrong : b.first_wrong};
}

/// The sums of a thread's run of sequences.
OPREPLAY_DEVICE TokenSums run_sums(const ThreadRun& run, const TokenBatch& batch) {
  TokenSums sums;
  for (int64_t i = run.begin; i < run.end; ++i) {
    sums.tokens += batch.query_lens[i];
    const bool wrong = token_status(i, batch).error != kTokensFit;
    if (wrong && sums.first_wrong == kNone) sums.first_wrong = i;
  }
  return sums;
}

OPREPLAY_DEVICE TokenStatus status_of_all(const TokenSums& all, const TokenBatch& batch) {
  return all.first_wrong == kNone ? total_status(all.tokens, batch)
                                  : token_status(all.first_wrong, batch);
}

/// The whole block writes the starts; they are complete when the call returns.
OPREPLAY_DEVICE void write_starts(int32_t* starts,
                                  TokenStatus* status,
                                  const TokenBatch& batch,
                                  TokenSums* partial) {
  const ThreadRun run = thread_run(batch.num_seqs);
  const Combined<TokenSums> sums = combine_block(run_sums(run, batch), partial);
  const TokenStatus result = status_of_all(sums.all, batch);
  const bool fits = result.error == kTokensFit;
  int64_t next = sums.before.tokens;
  for (int64_t i = run.begin; i < run.end; ++i) {
    starts[i] = fits ? static_cast<int32_t>(next) : 0;
    next += batch.query_lens[i];
  }
  if (gpu::thread_id() == 0) {
    starts[batch.num_seqs] = fits ? static_cast<int32_t>(sums.all.tokens) : 0;
    if (status != nullptr) *status = result;
  }
  gpu::barrier();
}

/// One block.
OPREPLAY_KERNEL void starts_kernel(int32_t* starts, TokenStatus* status, TokenBatch batch) {
  write_starts(starts, status, batch, static_cast<TokenSums*>(gpu::shared_memory()));
}

/// One thread for each token. The starts of a small batch are summed up here, by each block for
/// itself.
OPREPLAY_KERNEL void token_kernel(IndexOutput out,
                                  const int32_t* starts,
                                  TokenStatus* status,
                                  SlotTable table,
                                  TokenBatch batch) {
  if (batch.num_seqs <= kSmallBatch) {
    auto* const partial = static_cast<TokenSums*>(gpu::shared_memory());
    auto* const own = reinterpret_cast<int32_t*>(partial + gpu::threads_per_block());
    write_starts(own, gpu::block_id() == 0 ? status : nullptr, batch, partial);
    starts = own;
  }
  const int64_t total = starts[batch.num_seqs];
  for (int64_t i = gpu::global_id(); i < batch.total; i += gpu::global_size()) {
    if (i >= total) {
      store_index(out, i, table.block_size == 0 ? 0 : -1);
      continue;
    }
    const int64_t sequence = last_not_above(starts, static_cast<int32_t>(batch.num_seqs), i);
    const int64_t position = batch.seq_lens[sequence] - (starts[sequence + 1] - i);
    store_index(out, i, table.block_size == 0 ? position : slot_of(sequence, position, table));
  }
}

/// One block: checks the sequences.
OPREPLAY_KERNEL void check_kernel(TokenStatus* status, TokenBatch batch) {
  auto* const partial = static_cast<TokenSums*>(gpu::shared_memory());
  TokenSums sums = combine_block(run_sums(thread_run(batch.num_seqs), batch), partial).all;
  sums.tokens = 0;
  if (gpu::thread_id() == 0) *status = status_of_all(sums, batch);
}

/// One thread for each position of each sequence.
OPREPLAY_KERNEL void request_kernel(
    int32_t* slots, const TokenStatus* status, int64_t context, SlotTable table, TokenBatch batch) {
  const bool fits = status->error == kTokensFit;
  const int64_t entries = batch.num_seqs * context;
  for (int64_t i = gpu::global_id(); i < entries; i += gpu::global_size()) {
    const int64_t sequence = i / context;
    const int64_t position = i - sequence * context;
    const bool there = fits && position < batch.seq_lens[sequence];
    slots[i] = there ? static_cast<int32_t>(slot_of(sequence, position, table)) : 0;
  }
}

uint32_t partial_bytes() {
  return gpu::default_threads() * static_cast<uint32_t>(sizeof(TokenSums));
}

}  // namespace

void query_starts_gpu(int32_t* starts, TokenStatus* status, const TokenBatch& batch, void* stream) {
  gpu::launch(
      starts_kernel, 1, gpu::default_threads(), partial_bytes(), stream, starts, status, batch);
}

void token_index_gpu(const IndexOutput& out,
                     int32_t* starts,
                     TokenStatus* status,
                     const SlotTable& table,
                     const TokenBatch& batch,
                     void* stream) {
  uint32_t shared_bytes = 0;
  if (batch.num_seqs > kSmallBatch) {
    query_starts_gpu(starts, status, batch, stream);
  } else {
    const auto own_starts = static_cast<uint32_t>(batch.num_seqs + 1);
    shared_bytes = partial_bytes() + own_starts * static_cast<uint32_t>(sizeof(int32_t));
  }
  gpu::launch(token_kernel,
              gpu::blocks_for(batch.total),
              gpu::default_threads(),
              shared_bytes,
              stream,
              out,
              starts,
              status,
              table,
              batch);
}

void request_slots_gpu(int32_t* slots,
                       TokenStatus* status,
                       int64_t context,
                       const SlotTable& table,
                       const TokenBatch& batch,
                       void* stream) {
  const uint32_t threads = gpu::default_threads();
  gpu::launch(check_kernel, 1, threads, partial_bytes(), stream, status, batch);
  gpu::launch(request_kernel,
              gpu::blocks_for(batch.num_seqs * context),
              threads,
              0,
              stream,
              slots,
              status,
              context,
              table,
              batch);
}

}  // namespace opreplay::kernels
