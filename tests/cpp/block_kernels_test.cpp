// SPDX-License-Identifier: MIT
//
// The kernels of block tables, token indices, lengths and random fills on the emulated GPU, against
// their CPU twins, over random shapes. An argument chooses the number of cases. The twins are
// compared with references in the Python tests.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/block_combine.h"
#include "kernels/block_table.h"
#include "kernels/fill_random.h"
#include "kernels/gpu.h"
#include "kernels/sequence_lengths.h"
#include "kernels/token_index.h"

namespace gpu = opreplay::gpu;
using namespace opreplay::kernels;

namespace {

using Random = std::mt19937;
using Ints = std::vector<int32_t>;

/// Three pieces, however many items there are: on one thread, but split as threads would split it.
void in_pieces(int64_t count, int64_t /*grain*/, const opreplay::RangeBody& body) {
  const int64_t piece = count / 3 + 1;
  for (int64_t begin = 0; begin < count; begin += piece) {
    body(begin, std::min(count, begin + piece));
  }
}

int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// Other sizes of blocks and grids for each case, so that no kernel leans on one.
void vary_settings(Random& random) {
  auto& settings = gpu::emulated::settings();
  settings.threads = static_cast<uint32_t>(std::vector{1, 7, 16, 33, 64}[pick(random, 0, 4)]);
  settings.blocks = static_cast<uint32_t>(pick(random, 2, 6));
  settings.blocks_at_once = static_cast<uint32_t>(pick(random, 2, 3));
  settings.order_seed = random();
}

/// Lengths of a batch; a few batches are too large to be planned in shared memory.
Ints random_lengths(Random& random, int64_t longest) {
  const int64_t num_seqs =
      pick(random, 0, 15) == 0 ? kSmallBatch + pick(random, 0, 9) : pick(random, 0, 40);
  Ints lens(static_cast<size_t>(num_seqs));
  for (int32_t& length : lens) length = static_cast<int32_t>(pick(random, 0, longest));
  if (!lens.empty() && pick(random, 0, 9) == 0) lens.back() = -3;
  return lens;
}

/// Where a table is written, with one entry past the end that must stay as it is.
struct PlanBuffers {
  explicit PlanBuffers(size_t num_seqs)
      : seq_lens(num_seqs, 9), first_entries(num_seqs + 1, 9), own_ordinals(num_seqs, 9) {}

  BlockPlan plan(bool compressed) {
    return {
        seq_lens.data(), compressed ? first_entries.data() : nullptr, own_ordinals.data(), &status};
  }

  Ints seq_lens;
  Ints first_entries;
  std::vector<int64_t> own_ordinals;
  BlockStatus status{};
};

void check_same_status(const BlockStatus& a, const BlockStatus& b) {
  CHECK_WITH(std::memcmp(&a, &b, sizeof a) == 0,
             std::to_string(a.error) + " " + std::to_string(a.sequence) + " " +
                 std::to_string(a.value) + " " + std::to_string(a.limit) + " and " +
                 std::to_string(b.error) + " " + std::to_string(b.sequence) + " " +
                 std::to_string(b.value) + " " + std::to_string(b.limit));
}

BlockRequest random_request(Random& random, int64_t num_seqs) {
  const auto pool = static_cast<uint32_t>(pick(random, 0, 2) == 0 ? pick(random, 1, 60)
                                                                  : pick(random, 4000, 9000));
  const auto order = static_cast<BlockOrder>(pick(random, 0, 2));
  return {num_seqs,
          std::vector<int64_t>{1, 3, 16}[static_cast<size_t>(pick(random, 0, 2))],
          pick(random, 0, 3),
          pick(random, 1, 60),
          pick(random, 0, 400),
          static_cast<OnExhausted>(pick(random, 0, 2)),
          block_ids(order,
                    static_cast<uint32_t>(pick(random, 0, 1)),
                    pool,
                    static_cast<uint32_t>(num_seqs),
                    random())};
}

void check_block_table(Random& random) {
  const Ints lens = random_lengths(random, 60);
  BlockRequest request = random_request(random, static_cast<int64_t>(lens.size()));
  request.capacity = INT64_MAX;
  const size_t entries = lens.size() * static_cast<size_t>(request.width);
  Ints on_cpu(entries + 1, 7);
  Ints on_gpu(entries + 1, 7);
  PlanBuffers cpu(lens.size());
  PlanBuffers gpu_buffers(lens.size());
  block_table_cpu(on_cpu.data(), lens.data(), request, cpu.plan(false), in_pieces);
  const int64_t before = gpu::emulated::settings().launches;
  block_table_gpu(on_gpu.data(), lens.data(), request, gpu_buffers.plan(false), nullptr);
  const int64_t launches = gpu::emulated::settings().launches - before;
  CHECK(launches == (request.num_seqs <= kSmallBatch ? 1 : 2));
  check_same_status(cpu.status, gpu_buffers.status);
  CHECK(cpu.seq_lens == gpu_buffers.seq_lens);
  CHECK(on_cpu == on_gpu);
}

void check_block_csr(Random& random) {
  const Ints lens = random_lengths(random, 60);
  BlockRequest request = random_request(random, static_cast<int64_t>(lens.size()));
  request.width = INT32_MAX;
  if (pick(random, 0, 3) > 0) request.capacity += 60 * static_cast<int64_t>(lens.size());
  Ints indices_cpu(static_cast<size_t>(request.capacity) + 1, 7);
  Ints indices_gpu = indices_cpu;
  Ints last_cpu(lens.size() + 1, 7);
  Ints last_gpu = last_cpu;
  PlanBuffers cpu(lens.size());
  PlanBuffers gpu_buffers(lens.size());
  block_csr_cpu(
      indices_cpu.data(), last_cpu.data(), lens.data(), request, cpu.plan(true), in_pieces);
  block_csr_gpu(
      indices_gpu.data(), last_gpu.data(), lens.data(), request, gpu_buffers.plan(true), nullptr);
  check_same_status(cpu.status, gpu_buffers.status);
  CHECK(cpu.first_entries == gpu_buffers.first_entries);
  CHECK(cpu.seq_lens == gpu_buffers.seq_lens);
  CHECK(last_cpu == last_gpu);
  CHECK(indices_cpu == indices_gpu);
}

/// Without a shared prefix no block is handed out twice, and all lie in the pool.
void check_ids_are_distinct(Random& random) {
  const auto pool = static_cast<uint32_t>(pick(random, 1, 12000));
  const auto first = static_cast<uint32_t>(pick(random, 0, 1));
  const BlockIds ids = block_ids(static_cast<BlockOrder>(pick(random, 0, 2)),
                                 first,
                                 pool,
                                 static_cast<uint32_t>(pick(random, 0, 300)),
                                 random());
  Ints all(pool);
  write_block_ids(all.data(), 0, pool, ids);
  for (uint32_t i = 0; i < pool; i += 97) CHECK(all[i] == block_id(i, ids));
  std::sort(all.begin(), all.end());
  Ints expected(pool);
  std::iota(expected.begin(), expected.end(), static_cast<int32_t>(first));
  CHECK(all == expected);
}

void check_token_index(Random& random) {
  const Ints lens = random_lengths(random, 40);
  Ints queries = lens;
  for (int32_t& query : queries)
    query = query > 0 ? static_cast<int32_t>(pick(random, 0, query)) : query;
  if (!queries.empty() && pick(random, 0, 9) == 0) queries.front() += 50;
  const auto num_seqs = static_cast<int64_t>(lens.size());
  const int64_t block_size = pick(random, 1, 17);
  const int64_t width = pick(random, 2, 42);
  Ints blocks(static_cast<size_t>(num_seqs * width));
  for (int32_t& block : blocks) block = static_cast<int32_t>(pick(random, 0, 999));
  const bool slots = pick(random, 0, 1) == 1;
  const bool wide = pick(random, 0, 1) == 1;
  const SlotTable table{blocks.data(), width, slots ? block_size : 0};
  const TokenBatch batch{num_seqs,
                         lens.data(),
                         queries.data(),
                         pick(random, 0, 40 * num_seqs),
                         slots ? width * block_size : INT32_MAX};

  std::vector<int64_t> cpu(static_cast<size_t>(batch.total) + 1, 7);
  std::vector<int64_t> on_gpu = cpu;
  Ints starts(lens.size() + 1);
  Ints gpu_starts(lens.size() + 1);
  TokenStatus status{};
  TokenStatus gpu_status{};
  token_index_cpu({cpu.data(), wide}, starts.data(), &status, table, batch, in_pieces);
  token_index_gpu({on_gpu.data(), wide}, gpu_starts.data(), &gpu_status, table, batch, nullptr);
  CHECK(std::memcmp(&status, &gpu_status, sizeof status) == 0);
  CHECK(cpu == on_gpu);

  query_starts_cpu(starts.data(), &status, batch);
  query_starts_gpu(gpu_starts.data(), &gpu_status, batch, nullptr);
  CHECK(std::memcmp(&status, &gpu_status, sizeof status) == 0);
  CHECK(starts == gpu_starts);

  const int64_t context = pick(random, 20, 45);
  const TokenBatch requests{
      num_seqs, lens.data(), lens.data(), INT32_MAX, std::min(context, width * block_size)};
  const SlotTable all{blocks.data(), width, block_size};
  Ints rows(static_cast<size_t>(num_seqs * context) + 1, 7);
  Ints gpu_rows = rows;
  request_slots_cpu(rows.data(), &status, context, all, requests, in_pieces);
  request_slots_gpu(gpu_rows.data(), &gpu_status, context, all, requests, nullptr);
  CHECK(std::memcmp(&status, &gpu_status, sizeof status) == 0);
  CHECK(rows == gpu_rows);
}

void check_lengths(Random& random) {
  const int64_t count = pick(random, 1, 200);
  const BlockPermutation order = block_permutation(static_cast<uint32_t>(count), random());
  LengthDraw draw{};
  draw.buckets = static_cast<int32_t>(pick(random, 1, LengthDraw::kMaxBuckets));
  draw.seed = random();
  draw.maximum = static_cast<int32_t>(pick(random, 0, 1) * 5000);
  draw.order = order;
  for (int32_t i = 0; i < draw.buckets; ++i) {
    draw.first_length[i] = 1 + 3 * i;
    draw.upper_bits[i] = static_cast<uint32_t>((uint64_t{1} << 32) * (i + 1) / draw.buckets - 1);
  }
  draw.last_length = draw.first_length[draw.buckets - 1] + 2;
  Ints cpu(static_cast<size_t>(count) + 1, 7);
  Ints on_gpu = cpu;
  draw_lengths_cpu(cpu.data(), count, draw, in_pieces);
  draw_lengths_gpu(on_gpu.data(), count, draw, nullptr);
  CHECK(cpu == on_gpu);

  const LengthRamp ramp{100 << 16, pick(random, 0, 1 << 17), 3, 150, count - 1, 2, 5, 170, order};
  ramp_lengths_cpu(cpu.data(), count, ramp, in_pieces);
  ramp_lengths_gpu(on_gpu.data(), count, ramp, nullptr);
  CHECK(cpu == on_gpu);
}

void check_fill_random(Random& random) {
  const uint64_t seed = random();
  const uint64_t stream = random();
  const auto offset = static_cast<size_t>(pick(random, 0, 1) * 8 + pick(random, 0, 1) * 2);
  const int64_t elements = pick(random, 0, 300);
  std::vector<unsigned char> cpu(4096, 7);
  std::vector<unsigned char> on_gpu(4096, 7);

  const auto format = static_cast<RandomFormat>(pick(random, 0, 9));
  const int64_t bytes = 8 * elements + pick(random, 0, 3) * 2;
  fill_random_cpu(cpu.data() + offset, bytes, format, seed, stream, in_pieces);
  fill_random_gpu(on_gpu.data() + offset, bytes, format, seed, stream, nullptr);
  CHECK_WITH(cpu == on_gpu, "format " + std::to_string(static_cast<int>(format)));

  const int width = 1 << pick(random, 0, 3);
  const uint64_t most = width == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * width)) - 1;
  const uint64_t ranges[] = {
      1, 2, 3, 100, 128, 1000, uint64_t{1} << 32, (uint64_t{1} << 40) + 1, 0};
  uint64_t range = ranges[pick(random, 0, 8)];
  if (width < 8 && range - 1 > most) range = 77;
  const uint64_t low = static_cast<uint64_t>(pick(random, -100, 100));
  fill_random_integers_cpu(
      cpu.data() + offset, elements, width, low, range, seed, stream, in_pieces);
  fill_random_integers_gpu(
      on_gpu.data() + offset, elements, width, low, range, seed, stream, nullptr);
  CHECK_WITH(cpu == on_gpu, std::to_string(width) + " bytes, range " + std::to_string(range));
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 40;
  Random random(20);
  for (int i = 0; i < cases; ++i) {
    vary_settings(random);
    check_block_table(random);
    check_block_csr(random);
    check_ids_are_distinct(random);
    check_token_index(random);
    check_lengths(random);
    check_fill_random(random);
  }
  std::printf("block kernels: %d cases ok\n", cases);
  return 0;
}
