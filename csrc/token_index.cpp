// SPDX-License-Identifier: MIT
#include "kernels/token_index.h"

#include <ATen/ops/empty.h>

#include <limits>

#include "opreplay/block_tables.h"
#include "table_builders.h"

namespace opreplay {
namespace {

using kernels::IndexOutput;
using kernels::SlotTable;
using kernels::TokenBatch;
using kernels::TokenStatus;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

void check_vector(const char* name, const at::Tensor& tensor, const at::Tensor& like) {
  check_buffer(name, tensor, at::kInt, like.device());
  TORCH_CHECK_VALUE(tensor.dim() == 1, "expected ", name, " of sizes [B], got ", tensor.sizes());
}

void check_batch(const at::Tensor& seq_lens, const at::Tensor& query_lens) {
  check_table_device(query_lens.device());
  check_vector("query_lens", query_lens, query_lens);
  check_vector("seq_lens", seq_lens, query_lens);
  TORCH_CHECK_VALUE(seq_lens.numel() == query_lens.numel(),
                    "expected as many query_lens as seq_lens, got ",
                    query_lens.numel(),
                    " and ",
                    seq_lens.numel());
}

void check_status_buffer(const at::Tensor& status, const at::Tensor& like) {
  check_buffer("status", status, at::kInt, like.device());
  TORCH_CHECK_VALUE(status.numel() == kernels::kTokenStatusSize,
                    "expected status of ",
                    kernels::kTokenStatusSize,
                    " entries, got ",
                    status.numel());
}

SlotTable slot_table(const at::Tensor& block_table,
                     const at::Tensor& seq_lens,
                     int64_t block_size) {
  check_buffer("block_table", block_table, at::kInt, seq_lens.device());
  TORCH_CHECK_VALUE(block_table.dim() == 2 && block_table.size(0) == seq_lens.numel(),
                    "expected block_table of sizes [",
                    seq_lens.numel(),
                    ", W], got ",
                    block_table.sizes());
  check_at_least("block_size", block_size, 1);
  check_at_most("block_size", block_size, kInt32Max);
  return {block_table.const_data_ptr<int32_t>(), block_table.size(1), block_size};
}

IndexOutput index_output(const at::Tensor& values) {
  return {values.mutable_data_ptr(), values.scalar_type() == at::kLong};
}

void check_index_buffer(const at::Tensor& values, const at::Tensor& like) {
  const bool wide = values.scalar_type() == at::kLong;
  check_buffer("values", values, wide ? at::kLong : at::kInt, like.device());
}

/// Throws what the status says.
void throw_status(const TokenStatus& status) {
  switch (status.error) {
    case kernels::kNegativeQuery:
      TORCH_CHECK_VALUE(
          false, "expected lengths >= 0, got ", status.value, " for sequence ", status.sequence);
    case kernels::kQueryTooLong:
      TORCH_CHECK_VALUE(false,
                        "expected query_lens <= seq_lens, got ",
                        status.value,
                        " of ",
                        status.limit,
                        " tokens for sequence ",
                        status.sequence);
    case kernels::kTooManyTokens:
      TORCH_CHECK_VALUE(
          false, "the queries have ", status.value, " tokens, the output holds ", status.limit);
    case kernels::kBeyondTable:
      TORCH_CHECK_VALUE(false,
                        "sequence ",
                        status.sequence,
                        " has ",
                        status.value,
                        " tokens, its row holds ",
                        status.limit);
    default:
      return;
  }
}

TokenStatus& status_in(const at::Tensor& status) {
  return *reinterpret_cast<TokenStatus*>(status.mutable_data_ptr<int32_t>());
}

at::Tensor empty_status(const at::Tensor& like) {
  return at::empty({kernels::kTokenStatusSize}, like.options().dtype(at::kInt));
}

/// The given total, or the sum of the lengths read from the tensor.
int64_t total_of(const at::Tensor& query_lens, std::optional<int64_t> total) {
  if (total) {
    check_at_least("total", *total, 0);
    return *total;
  }
  const at::Tensor on_cpu = query_lens.cpu();
  const auto* const lens = on_cpu.const_data_ptr<int32_t>();
  int64_t sum = 0;
  for (int64_t i = 0; i < on_cpu.numel(); ++i) sum += lens[i] > 0 ? lens[i] : 0;
  return sum;
}

TokenBatch token_batch(const at::Tensor* seq_lens,
                       const at::Tensor& query_lens,
                       int64_t total,
                       int64_t row_tokens) {
  return {query_lens.numel(),
          seq_lens == nullptr ? nullptr : seq_lens->const_data_ptr<int32_t>(),
          query_lens.const_data_ptr<int32_t>(),
          total,
          row_tokens};
}

/// Positions, or slots if there is a table.
void write_token_index(const TokenIndex& out,
                       const SlotTable& table,
                       const TokenBatch& batch,
                       const at::Tensor& query_lens) {
  const at::Tensor scratch = at::empty({batch.num_seqs + 1}, query_lens.options());
  auto* const starts = scratch.mutable_data_ptr<int32_t>();
  TokenStatus* const status = &status_in(out.status);
  const IndexOutput values = index_output(out.values);
  if (query_lens.is_cpu()) {
    kernels::token_index_cpu(values, starts, status, table, batch, at_parallel_for);
    throw_status(*status);
    return;
  }
  const c10::DeviceGuard guard(query_lens.device());
  kernels::token_index_gpu(
      values, starts, status, table, batch, current_stream(query_lens.device()));
}

}  // namespace

void fill_query_start_loc(const TokenIndex& out, const at::Tensor& query_lens) {
  check_table_device(query_lens.device());
  check_vector("query_lens", query_lens, query_lens);
  check_vector("values", out.values, query_lens);
  TORCH_CHECK_VALUE(out.values.numel() == query_lens.numel() + 1,
                    "expected values of ",
                    query_lens.numel() + 1,
                    " entries, got ",
                    out.values.numel());
  check_status_buffer(out.status, query_lens);
  auto* const starts = out.values.mutable_data_ptr<int32_t>();
  TokenStatus* const status = &status_in(out.status);
  const TokenBatch batch = token_batch(nullptr, query_lens, kInt32Max, kInt32Max);
  if (query_lens.is_cpu()) {
    kernels::query_starts_cpu(starts, status, batch);
    throw_status(*status);
    return;
  }
  const c10::DeviceGuard guard(query_lens.device());
  kernels::query_starts_gpu(starts, status, batch, current_stream(query_lens.device()));
}

TokenIndex query_start_loc(const at::Tensor& query_lens) {
  const TokenIndex out{at::empty({query_lens.numel() + 1}, query_lens.options()),
                       empty_status(query_lens)};
  fill_query_start_loc(out, query_lens);
  return out;
}

void fill_positions(const TokenIndex& out,
                    const at::Tensor& seq_lens,
                    const at::Tensor& query_lens) {
  check_batch(seq_lens, query_lens);
  check_index_buffer(out.values, query_lens);
  check_status_buffer(out.status, query_lens);
  write_token_index(out,
                    {nullptr, 0, 0},
                    token_batch(&seq_lens, query_lens, out.values.numel(), kInt32Max),
                    query_lens);
}

TokenIndex positions(const at::Tensor& seq_lens,
                     const at::Tensor& query_lens,
                     std::optional<int64_t> total,
                     at::ScalarType dtype) {
  check_batch(seq_lens, query_lens);
  const TokenIndex out{at::empty({total_of(query_lens, total)}, query_lens.options().dtype(dtype)),
                       empty_status(query_lens)};
  fill_positions(out, seq_lens, query_lens);
  return out;
}

void fill_slot_mapping(const TokenIndex& out,
                       const at::Tensor& block_table,
                       const at::Tensor& seq_lens,
                       const at::Tensor& query_lens,
                       int64_t block_size) {
  check_batch(seq_lens, query_lens);
  check_index_buffer(out.values, query_lens);
  check_status_buffer(out.status, query_lens);
  const SlotTable table = slot_table(block_table, seq_lens, block_size);
  const int64_t row_tokens = table.width * table.block_size;
  write_token_index(
      out, table, token_batch(&seq_lens, query_lens, out.values.numel(), row_tokens), query_lens);
}

TokenIndex slot_mapping(const at::Tensor& block_table,
                        const at::Tensor& seq_lens,
                        const at::Tensor& query_lens,
                        int64_t block_size,
                        std::optional<int64_t> total,
                        at::ScalarType dtype) {
  check_batch(seq_lens, query_lens);
  const TokenIndex out{at::empty({total_of(query_lens, total)}, query_lens.options().dtype(dtype)),
                       empty_status(query_lens)};
  fill_slot_mapping(out, block_table, seq_lens, query_lens, block_size);
  return out;
}

void fill_req_to_token(const TokenIndex& out,
                       const at::Tensor& block_table,
                       const at::Tensor& seq_lens,
                       int64_t block_size) {
  check_batch(seq_lens, seq_lens);
  check_buffer("values", out.values, at::kInt, seq_lens.device());
  TORCH_CHECK_VALUE(out.values.dim() == 2 && out.values.size(0) == seq_lens.numel(),
                    "expected values of sizes [",
                    seq_lens.numel(),
                    ", context], got ",
                    out.values.sizes());
  check_status_buffer(out.status, seq_lens);
  const SlotTable table = slot_table(block_table, seq_lens, block_size);
  const int64_t context = out.values.size(1);
  const int64_t row_tokens = std::min(context, table.width * table.block_size);
  const TokenBatch batch = token_batch(&seq_lens, seq_lens, kInt32Max, row_tokens);
  auto* const slots = out.values.mutable_data_ptr<int32_t>();
  TokenStatus* const status = &status_in(out.status);
  if (seq_lens.is_cpu()) {
    kernels::request_slots_cpu(slots, status, context, table, batch, at_parallel_for);
    throw_status(*status);
    return;
  }
  const c10::DeviceGuard guard(seq_lens.device());
  kernels::request_slots_gpu(
      slots, status, context, table, batch, current_stream(seq_lens.device()));
}

TokenIndex req_to_token(const at::Tensor& block_table,
                        const at::Tensor& seq_lens,
                        int64_t block_size,
                        std::optional<int64_t> context) {
  check_batch(seq_lens, seq_lens);
  const SlotTable table = slot_table(block_table, seq_lens, block_size);
  if (context) check_at_least("context", *context, 0);
  const TokenIndex out{
      at::empty({seq_lens.numel(), context.value_or(table.width * block_size)}, seq_lens.options()),
      empty_status(seq_lens)};
  fill_req_to_token(out, block_table, seq_lens, block_size);
  return out;
}

void check_token_status(const at::Tensor& status) {
  check_status_buffer(status, status);
  const at::Tensor on_cpu = status.cpu();
  throw_status(status_in(on_cpu));
}

}  // namespace opreplay
