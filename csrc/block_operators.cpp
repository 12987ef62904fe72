// SPDX-License-Identifier: MIT
//
// The builders of block_tables.h as operators of the dispatcher.
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "opreplay/block_tables.h"

namespace opreplay {
namespace {

using Tensors2 = std::tuple<at::Tensor, at::Tensor>;
using Tensors3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Tensors5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

SeqLenOptions length_options(std::string kind,
                             int64_t low,
                             int64_t high,
                             double s,
                             std::optional<int64_t> total,
                             std::optional<int64_t> total_squares,
                             std::optional<int64_t> maximum,
                             int64_t seed) {
  return {
      std::move(kind), low, high, s, total, total_squares, maximum, static_cast<uint64_t>(seed)};
}

at::Tensor seq_lens_op(int64_t num_seqs,
                       std::string kind,
                       int64_t low,
                       int64_t high,
                       double s,
                       std::optional<int64_t> total,
                       std::optional<int64_t> total_squares,
                       std::optional<int64_t> maximum,
                       int64_t seed,
                       std::optional<at::Device> device) {
  return seq_lens(
      num_seqs,
      length_options(std::move(kind), low, high, s, total, total_squares, maximum, seed),
      device.value_or(at::kCPU));
}

void seq_lens_out_op(std::string kind,
                     int64_t low,
                     int64_t high,
                     double s,
                     std::optional<int64_t> total,
                     std::optional<int64_t> total_squares,
                     std::optional<int64_t> maximum,
                     int64_t seed,
                     const at::Tensor& out) {
  fill_seq_lens(out,
                length_options(std::move(kind), low, high, s, total, total_squares, maximum, seed));
}

BlockOptions block_options(std::string order,
                           bool reserve_block_zero,
                           int64_t shared_prefix_blocks,
                           std::string on_exhausted,
                           int64_t seed) {
  return {std::move(order),
          reserve_block_zero,
          shared_prefix_blocks,
          std::move(on_exhausted),
          static_cast<uint64_t>(seed)};
}

Tensors3 block_table_op(const at::Tensor& seq_lens,
                        int64_t block_size,
                        int64_t num_blocks,
                        std::optional<int64_t> width,
                        std::string order,
                        bool reserve_block_zero,
                        int64_t shared_prefix_blocks,
                        std::string on_exhausted,
                        int64_t seed) {
  BlockTable result = block_table(seq_lens,
                                  block_size,
                                  num_blocks,
                                  width,
                                  block_options(std::move(order),
                                                reserve_block_zero,
                                                shared_prefix_blocks,
                                                std::move(on_exhausted),
                                                seed));
  return {std::move(result.table), std::move(result.seq_lens), std::move(result.status)};
}

void block_table_out_op(const at::Tensor& seq_lens,
                        int64_t block_size,
                        int64_t num_blocks,
                        std::string order,
                        bool reserve_block_zero,
                        int64_t shared_prefix_blocks,
                        std::string on_exhausted,
                        int64_t seed,
                        const at::Tensor& table,
                        const at::Tensor& seq_lens_out,
                        const at::Tensor& status) {
  fill_block_table({table, seq_lens_out, status},
                   seq_lens,
                   block_size,
                   num_blocks,
                   block_options(std::move(order),
                                 reserve_block_zero,
                                 shared_prefix_blocks,
                                 std::move(on_exhausted),
                                 seed));
}

Tensors5 block_csr_op(const at::Tensor& seq_lens,
                      int64_t block_size,
                      int64_t num_blocks,
                      std::optional<int64_t> length,
                      std::string order,
                      bool reserve_block_zero,
                      int64_t shared_prefix_blocks,
                      std::string on_exhausted,
                      int64_t seed) {
  BlockCsr result = block_csr(seq_lens,
                              block_size,
                              num_blocks,
                              length,
                              block_options(std::move(order),
                                            reserve_block_zero,
                                            shared_prefix_blocks,
                                            std::move(on_exhausted),
                                            seed));
  return {std::move(result.kv_indptr),
          std::move(result.kv_indices),
          std::move(result.kv_last_page_len),
          std::move(result.seq_lens),
          std::move(result.status)};
}

void block_csr_out_op(const at::Tensor& seq_lens,
                      int64_t block_size,
                      int64_t num_blocks,
                      std::string order,
                      bool reserve_block_zero,
                      int64_t shared_prefix_blocks,
                      std::string on_exhausted,
                      int64_t seed,
                      const at::Tensor& kv_indptr,
                      const at::Tensor& kv_indices,
                      const at::Tensor& kv_last_page_len,
                      const at::Tensor& seq_lens_out,
                      const at::Tensor& status) {
  fill_block_csr({kv_indptr, kv_indices, kv_last_page_len, seq_lens_out, status},
                 seq_lens,
                 block_size,
                 num_blocks,
                 block_options(std::move(order),
                               reserve_block_zero,
                               shared_prefix_blocks,
                               std::move(on_exhausted),
                               seed));
}

Tensors2 as_tuple(TokenIndex index) { return {std::move(index.values), std::move(index.status)}; }

Tensors2 query_start_loc_op(const at::Tensor& query_lens) {
  return as_tuple(query_start_loc(query_lens));
}

void query_start_loc_out_op(const at::Tensor& query_lens,
                            const at::Tensor& values,
                            const at::Tensor& status) {
  fill_query_start_loc({values, status}, query_lens);
}

Tensors2 positions_op(const at::Tensor& seq_lens,
                      const at::Tensor& query_lens,
                      std::optional<int64_t> total,
                      at::ScalarType dtype) {
  return as_tuple(positions(seq_lens, query_lens, total, dtype));
}

void positions_out_op(const at::Tensor& seq_lens,
                      const at::Tensor& query_lens,
                      const at::Tensor& values,
                      const at::Tensor& status) {
  fill_positions({values, status}, seq_lens, query_lens);
}

Tensors2 slot_mapping_op(const at::Tensor& block_table,
                         const at::Tensor& seq_lens,
                         const at::Tensor& query_lens,
                         int64_t block_size,
                         std::optional<int64_t> total,
                         at::ScalarType dtype) {
  return as_tuple(slot_mapping(block_table, seq_lens, query_lens, block_size, total, dtype));
}

void slot_mapping_out_op(const at::Tensor& block_table,
                         const at::Tensor& seq_lens,
                         const at::Tensor& query_lens,
                         int64_t block_size,
                         const at::Tensor& values,
                         const at::Tensor& status) {
  fill_slot_mapping({values, status}, block_table, seq_lens, query_lens, block_size);
}

Tensors2 req_to_token_op(const at::Tensor& block_table,
                         const at::Tensor& seq_lens,
                         int64_t block_size,
                         std::optional<int64_t> context) {
  return as_tuple(req_to_token(block_table, seq_lens, block_size, context));
}

void req_to_token_out_op(const at::Tensor& block_table,
                         const at::Tensor& seq_lens,
                         int64_t block_size,
                         const at::Tensor& values,
                         const at::Tensor& status) {
  fill_req_to_token({values, status}, block_table, seq_lens, block_size);
}

}  // namespace
}  // namespace opreplay

TORCH_LIBRARY_FRAGMENT(opreplay, m) {
  // No tensor goes in, so the kernel belongs to no device: it is registered with the schema.
  m.def(
      "seq_lens(int num_seqs, *, str kind=\"uniform\", int low=1, int high, float s=1.0, "
      "int? total=None, int? total_squares=None, int? maximum=None, int seed=0, "
      "Device? device=None) -> Tensor",
      opreplay::seq_lens_op);
  m.def(
      "seq_lens.out(*, str kind=\"uniform\", int low=1, int high, float s=1.0, int? total=None, "
      "int? total_squares=None, int? maximum=None, int seed=0, Tensor(a!) out) -> ()");
  m.def(
      "block_table(Tensor seq_lens, int block_size, int num_blocks, *, int? width=None, "
      "str order=\"permuted\", bool reserve_block_zero=False, int shared_prefix_blocks=0, "
      "str on_exhausted=\"error\", int seed=0) -> (Tensor table, Tensor seq_lens, Tensor status)");
  m.def(
      "block_table.out(Tensor seq_lens, int block_size, int num_blocks, *, "
      "str order=\"permuted\", bool reserve_block_zero=False, int shared_prefix_blocks=0, "
      "str on_exhausted=\"error\", int seed=0, Tensor(a!) table, Tensor(b!) seq_lens_out, "
      "Tensor(c!) status) -> ()");
  m.def(
      "block_csr(Tensor seq_lens, int block_size, int num_blocks, *, int? length=None, "
      "str order=\"permuted\", bool reserve_block_zero=False, int shared_prefix_blocks=0, "
      "str on_exhausted=\"error\", int seed=0) -> (Tensor kv_indptr, Tensor kv_indices, "
      "Tensor kv_last_page_len, Tensor seq_lens, Tensor status)");
  m.def(
      "block_csr.out(Tensor seq_lens, int block_size, int num_blocks, *, "
      "str order=\"permuted\", bool reserve_block_zero=False, int shared_prefix_blocks=0, "
      "str on_exhausted=\"error\", int seed=0, Tensor(a!) kv_indptr, Tensor(b!) kv_indices, "
      "Tensor(c!) kv_last_page_len, Tensor(d!) seq_lens_out, Tensor(e!) status) -> ()");
  m.def("query_start_loc(Tensor query_lens) -> (Tensor values, Tensor status)");
  m.def("query_start_loc.out(Tensor query_lens, *, Tensor(a!) values, Tensor(b!) status) -> ()");
  m.def(
      "positions(Tensor seq_lens, Tensor query_lens, *, int? total=None, "
      "ScalarType dtype=long) -> (Tensor values, Tensor status)");
  m.def(
      "positions.out(Tensor seq_lens, Tensor query_lens, *, Tensor(a!) values, "
      "Tensor(b!) status) -> ()");
  m.def(
      "slot_mapping(Tensor block_table, Tensor seq_lens, Tensor query_lens, int block_size, *, "
      "int? total=None, ScalarType dtype=long) -> (Tensor values, Tensor status)");
  m.def(
      "slot_mapping.out(Tensor block_table, Tensor seq_lens, Tensor query_lens, int block_size, *, "
      "Tensor(a!) values, Tensor(b!) status) -> ()");
  m.def(
      "req_to_token(Tensor block_table, Tensor seq_lens, int block_size, *, int? context=None) -> "
      "(Tensor values, Tensor status)");
  m.def(
      "req_to_token.out(Tensor block_table, Tensor seq_lens, int block_size, *, "
      "Tensor(a!) values, Tensor(b!) status) -> ()");
  m.def("check_block_status(Tensor status) -> ()", opreplay::check_block_status);
  m.def("check_token_status(Tensor status) -> ()", opreplay::check_token_status);
}

TORCH_LIBRARY_IMPL(opreplay, CompositeExplicitAutograd, m) {
  m.impl("seq_lens.out", opreplay::seq_lens_out_op);
  m.impl("block_table", opreplay::block_table_op);
  m.impl("block_table.out", opreplay::block_table_out_op);
  m.impl("block_csr", opreplay::block_csr_op);
  m.impl("block_csr.out", opreplay::block_csr_out_op);
  m.impl("query_start_loc", opreplay::query_start_loc_op);
  m.impl("query_start_loc.out", opreplay::query_start_loc_out_op);
  m.impl("positions", opreplay::positions_op);
  m.impl("positions.out", opreplay::positions_out_op);
  m.impl("slot_mapping", opreplay::slot_mapping_op);
  m.impl("slot_mapping.out", opreplay::slot_mapping_out_op);
  m.impl("req_to_token", opreplay::req_to_token_op);
  m.impl("req_to_token.out", opreplay::req_to_token_out_op);
}
