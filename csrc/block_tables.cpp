// SPDX-License-Identifier: MIT
#include "opreplay/block_tables.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/block_table.h"
#include "table_builders.h"

namespace opreplay {
namespace {

using kernels::BlockOrder;
using kernels::BlockPlan;
using kernels::BlockRequest;
using kernels::BlockStatus;
using kernels::OnExhausted;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

BlockOrder block_order(const std::string& name) {
  if (name == "permuted") return BlockOrder::kPermuted;
  if (name == "contiguous") return BlockOrder::kContiguous;
  TORCH_CHECK_VALUE(
      name == "strided", "expected order permuted, contiguous or strided, got ", name);
  return BlockOrder::kStrided;
}

OnExhausted on_exhausted(const std::string& name) {
  if (name == "error") return OnExhausted::kError;
  if (name == "shrink_lengths") return OnExhausted::kShrinkLengths;
  TORCH_CHECK_VALUE(
      name == "share", "expected on_exhausted error, shrink_lengths or share, got ", name);
  return OnExhausted::kShare;
}

void check_lengths(const at::Tensor& seq_lens) {
  check_table_device(seq_lens.device());
  check_buffer("seq_lens", seq_lens, at::kInt, seq_lens.device());
  TORCH_CHECK_VALUE(seq_lens.dim() == 1, "expected seq_lens of sizes [B], got ", seq_lens.sizes());
}

BlockRequest block_request(const at::Tensor& seq_lens,
                           int64_t block_size,
                           int64_t num_blocks,
                           int64_t width,
                           int64_t capacity,
                           const BlockOptions& options) {
  const int64_t first = options.reserve_block_zero ? 1 : 0;
  check_lengths(seq_lens);
  check_at_least("block_size", block_size, 1);
  check_at_most("block_size", block_size, kInt32Max);
  check_at_least("num_blocks", num_blocks, first + 1);
  check_at_most("num_blocks", num_blocks, kernels::kMaxPool);
  check_at_least("shared_prefix_blocks", options.shared_prefix_blocks, 0);
  return {seq_lens.numel(),
          block_size,
          options.shared_prefix_blocks,
          width,
          capacity,
          on_exhausted(options.on_exhausted),
          kernels::block_ids(block_order(options.order),
                             static_cast<uint32_t>(first),
                             static_cast<uint32_t>(num_blocks - first),
                             static_cast<uint32_t>(seq_lens.numel()),
                             options.seed)};
}

/// Throws what the status says; the pool's part names the ways out.
void throw_status(const BlockStatus& status) {
  switch (status.error) {
    case kernels::kNegativeLength:
      TORCH_CHECK_VALUE(
          false, "expected seq_lens >= 0, got ", status.value, " for sequence ", status.sequence);
    case kernels::kRowTooWide:
      TORCH_CHECK_VALUE(false,
                        "sequence ",
                        status.sequence,
                        " takes ",
                        status.value,
                        " blocks, the table's width is ",
                        status.limit,
                        "; widen it or use on_exhausted=\"shrink_lengths\"");
    case kernels::kPoolExhausted:
      TORCH_CHECK_VALUE(false,
                        "the sequences take ",
                        status.value,
                        " blocks at least, the pool has ",
                        status.limit,
                        " to hand out; enlarge num_blocks or use on_exhausted="
                        "\"shrink_lengths\" or \"share\"");
    case kernels::kIndicesTooShort:
      TORCH_CHECK_VALUE(false,
                        "the pages of all sequences are ",
                        status.value,
                        ", kv_indices holds ",
                        status.limit);
    default:
      return;
  }
}

BlockStatus& status_in(const at::Tensor& status) {
  return *reinterpret_cast<BlockStatus*>(status.mutable_data_ptr<int32_t>());
}

at::Tensor empty_ints(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, at::TensorOptions(at::kInt).device(like.device()));
}

void check_sizes(const char* name, const at::Tensor& tensor, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(
      tensor.sizes() == sizes, "expected ", name, " of sizes ", sizes, ", got ", tensor.sizes());
}

void check_ints(const char* name, const at::Tensor& tensor, const at::Tensor& like) {
  check_buffer(name, tensor, at::kInt, like.device());
}

/// Most blocks and most entries that the lengths can take, read from the tensor.
struct Extent {
  int64_t widest = 0;
  int64_t entries = 0;
};

Extent extent_of(const at::Tensor& seq_lens, int64_t block_size) {
  const at::Tensor on_cpu = seq_lens.cpu();
  const auto* const lens = on_cpu.const_data_ptr<int32_t>();
  Extent extent;
  for (int64_t i = 0; i < on_cpu.numel(); ++i) {
    const int64_t blocks = kernels::blocks_of(std::max(lens[i], 0), block_size);
    extent.widest = std::max(extent.widest, blocks);
    extent.entries += blocks;
  }
  return extent;
}

}  // namespace

void fill_block_table(const BlockTable& out,
                      const at::Tensor& seq_lens,
                      int64_t block_size,
                      int64_t num_blocks,
                      const BlockOptions& options) {
  TORCH_CHECK_VALUE(
      out.table.dim() == 2, "expected table of sizes [B, W], got ", out.table.sizes());
  const BlockRequest request = block_request(seq_lens,
                                             block_size,
                                             num_blocks,
                                             out.table.size(1),
                                             std::numeric_limits<int64_t>::max(),
                                             options);
  check_ints("table", out.table, seq_lens);
  check_sizes("table", out.table, {request.num_seqs, request.width});
  check_ints("seq_lens of the result", out.seq_lens, seq_lens);
  check_sizes("seq_lens of the result", out.seq_lens, {request.num_seqs});
  check_ints("status", out.status, seq_lens);
  check_sizes("status", out.status, {kernels::kBlockStatusSize});
  const at::Tensor ordinals = at::empty({request.num_seqs}, seq_lens.options().dtype(at::kLong));
  const BlockPlan plan{out.seq_lens.mutable_data_ptr<int32_t>(),
                       nullptr,
                       ordinals.mutable_data_ptr<int64_t>(),
                       &status_in(out.status)};
  const auto* const lens = seq_lens.const_data_ptr<int32_t>();
  auto* const table = out.table.mutable_data_ptr<int32_t>();
  if (seq_lens.is_cpu()) {
    kernels::block_table_cpu(table, lens, request, plan, at_parallel_for);
    throw_status(*plan.status);
    return;
  }
  const c10::DeviceGuard guard(seq_lens.device());
  kernels::block_table_gpu(table, lens, request, plan, current_stream(seq_lens.device()));
}

BlockTable block_table(const at::Tensor& seq_lens,
                       int64_t block_size,
                       int64_t num_blocks,
                       std::optional<int64_t> width,
                       const BlockOptions& options) {
  check_lengths(seq_lens);
  check_at_least("block_size", block_size, 1);
  if (width) check_at_least("width", *width, 0);
  const int64_t columns = width ? *width : extent_of(seq_lens, block_size).widest;
  const BlockTable out{empty_ints({seq_lens.numel(), columns}, seq_lens),
                       at::empty_like(seq_lens),
                       empty_ints({kernels::kBlockStatusSize}, seq_lens)};
  fill_block_table(out, seq_lens, block_size, num_blocks, options);
  return out;
}

void fill_block_csr(const BlockCsr& out,
                    const at::Tensor& seq_lens,
                    int64_t block_size,
                    int64_t num_blocks,
                    const BlockOptions& options) {
  const BlockRequest request =
      block_request(seq_lens, block_size, num_blocks, kInt32Max, out.kv_indices.numel(), options);
  check_ints("kv_indptr", out.kv_indptr, seq_lens);
  check_sizes("kv_indptr", out.kv_indptr, {request.num_seqs + 1});
  check_ints("kv_indices", out.kv_indices, seq_lens);
  check_at_most("kv_indices.numel()", out.kv_indices.numel(), kInt32Max);
  check_ints("kv_last_page_len", out.kv_last_page_len, seq_lens);
  check_sizes("kv_last_page_len", out.kv_last_page_len, {request.num_seqs});
  check_ints("seq_lens of the result", out.seq_lens, seq_lens);
  check_sizes("seq_lens of the result", out.seq_lens, {request.num_seqs});
  check_ints("status", out.status, seq_lens);
  check_sizes("status", out.status, {kernels::kBlockStatusSize});
  const at::Tensor ordinals = at::empty({request.num_seqs}, seq_lens.options().dtype(at::kLong));
  const BlockPlan plan{out.seq_lens.mutable_data_ptr<int32_t>(),
                       out.kv_indptr.mutable_data_ptr<int32_t>(),
                       ordinals.mutable_data_ptr<int64_t>(),
                       &status_in(out.status)};
  const auto* const lens = seq_lens.const_data_ptr<int32_t>();
  auto* const indices = out.kv_indices.mutable_data_ptr<int32_t>();
  auto* const last = out.kv_last_page_len.mutable_data_ptr<int32_t>();
  if (seq_lens.is_cpu()) {
    kernels::block_csr_cpu(indices, last, lens, request, plan, at_parallel_for);
    throw_status(*plan.status);
    return;
  }
  const c10::DeviceGuard guard(seq_lens.device());
  kernels::block_csr_gpu(indices, last, lens, request, plan, current_stream(seq_lens.device()));
}

BlockCsr block_csr(const at::Tensor& seq_lens,
                   int64_t block_size,
                   int64_t num_blocks,
                   std::optional<int64_t> length,
                   const BlockOptions& options) {
  check_lengths(seq_lens);
  check_at_least("block_size", block_size, 1);
  if (length) check_at_least("length", *length, 0);
  const int64_t entries = length ? *length : extent_of(seq_lens, block_size).entries;
  check_at_most("the pages of all sequences", entries, kInt32Max);
  BlockCsr out{empty_ints({seq_lens.numel() + 1}, seq_lens),
               empty_ints({entries}, seq_lens),
               at::empty_like(seq_lens),
               at::empty_like(seq_lens),
               empty_ints({kernels::kBlockStatusSize}, seq_lens)};
  fill_block_csr(out, seq_lens, block_size, num_blocks, options);
  if (!length && options.on_exhausted == "shrink_lengths") {
    out.kv_indices = out.kv_indices.narrow(0, 0, out.kv_indptr[-1].item<int64_t>());
  }
  return out;
}

void check_block_status(const at::Tensor& status) {
  check_buffer("status", status, at::kInt, status.device());
  check_sizes("status", status, {kernels::kBlockStatusSize});
  const at::Tensor on_cpu = status.cpu();
  throw_status(status_in(on_cpu));
}

}  // namespace opreplay
