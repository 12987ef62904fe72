// SPDX-License-Identifier: MIT
//
// The MoE kernels on the emulated GPU against their CPU twins and against plain references, over
// random shapes. An argument chooses the number of cases.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "expert_load.h"
#include "kernels/gpu.h"
#include "kernels/moe_batched.h"
#include "kernels/moe_routing.h"
#include "kernels/moe_sort.h"

namespace gpu = opreplay::gpu;
using namespace opreplay::kernels;

namespace {

using Random = std::mt19937;
using Ints = std::vector<int32_t>;

/// Three pieces, however many items there are: on one thread, but split as threads would split it.
void in_pieces(int64_t count, int64_t /*grain*/, const opreplay::RangeBody& body) {
  const int64_t piece = count / 3 + 1;
  for (int64_t begin = 0; begin < count; begin += piece)
    body(begin, std::min(count, begin + piece));
}

int32_t pick(Random& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

/// Other sizes of blocks and grids for each case, so that no kernel leans on one.
void vary_settings(Random& random) {
  auto& settings = gpu::emulated::settings();
  settings.threads = static_cast<uint32_t>(std::vector{7, 16, 33, 64}[pick(random, 0, 3)]);
  settings.blocks = static_cast<uint32_t>(pick(random, 2, 6));
  settings.blocks_at_once = static_cast<uint32_t>(pick(random, 2, 3));
  settings.order_seed = random();
}

struct SortCase {
  int32_t experts = 0;
  int32_t top_k = 0;
  int64_t tokens = 0;
  int32_t block_size = 0;
  int32_t unused_expert = -1;
  Ints ids;
  std::vector<float> weights;
  Ints table;
  Ints local_tokens;
  ExpertTable kind = ExpertTable::kNone;
  PairFormat format = PairFormat::kFlat;
  int64_t length = 0;

  [[nodiscard]] MoeSortInput input() const {
    return {ids.data(),
            weights.data(),
            local_tokens.empty() ? nullptr : local_tokens.data(),
            table.empty() ? nullptr : table.data(),
            tokens,
            top_k,
            experts,
            block_size,
            unused_expert,
            kind,
            format};
  }
};

/// Rows of distinct experts, some of them no expert; sometimes one expert takes all it can.
SortCase random_sort_case(Random& random) {
  SortCase c;
  c.experts = pick(random, 0, 3) == 0 ? pick(random, 1, 600) : pick(random, 1, 12);
  c.top_k = pick(random, 1, std::min(c.experts, 9));
  c.tokens = pick(random, 0, 3) == 0 ? pick(random, 0, 4096 / c.top_k) : pick(random, 0, 40);
  c.block_size = pick(random, 1, 9);
  c.unused_expert = pick(random, -1, 0);
  c.format = static_cast<PairFormat>(pick(random, 0, 2));
  c.kind = static_cast<ExpertTable>(pick(random, 0, 3));
  const bool crowded = pick(random, 0, 4) == 0;
  const bool strays = pick(random, 0, 2) == 0;
  Ints all(static_cast<size_t>(c.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t token = 0; token < c.tokens; ++token) {
    if (!crowded) std::shuffle(all.begin(), all.end(), random);
    for (int32_t slot = 0; slot < c.top_k; ++slot) {
      const bool stray = strays && pick(random, 0, 9) == 0;
      c.ids.push_back(stray ? (pick(random, 0, 1) == 0 ? -1 : c.experts + slot)
                            : all[static_cast<size_t>(slot)]);
      c.weights.push_back(static_cast<float>(pick(random, 1, 1000)) / 1000.0F);
    }
  }
  if (c.kind != ExpertTable::kNone) {
    int32_t local = 0;
    for (int32_t expert = 0; expert < c.experts; ++expert) {
      const bool here = pick(random, 0, 2) > 0;
      c.table.push_back(c.kind == ExpertTable::kMask ? here : (here ? local : -1));
      local += here;
    }
    if (c.kind == ExpertTable::kMap) std::shuffle(c.table.begin(), c.table.end(), random);
  }
  if (pick(random, 0, 3) == 0) c.local_tokens = {pick(random, 0, static_cast<int32_t>(c.tokens))};
  c.length = c.tokens * c.top_k + c.experts * (c.block_size - 1) + pick(random, 0, 5);
  return c;
}

struct SortResult {
  explicit SortResult(const SortCase& c)
      : ids(static_cast<size_t>(c.length), -7),
        weights(static_cast<size_t>(c.length), -7.0F),
        block_experts(static_cast<size_t>((c.length + c.block_size - 1) / c.block_size), -7),
        valid(2, -7),
        inverse(static_cast<size_t>(c.tokens * c.top_k), -7),
        counts(static_cast<size_t>(c.experts), -7),
        ends(counts),
        starts(static_cast<size_t>(c.experts) + 1, -7),
        problems(3 * counts.size(), -7),
        status(kMoeSortStatus, -7) {}

  [[nodiscard]] MoeSortOutput output() {
    return {ids.data(),
            weights.data(),
            block_experts.data(),
            valid.data(),
            inverse.data(),
            counts.data(),
            ends.data(),
            starts.data(),
            problems.data(),
            status.data(),
            static_cast<int64_t>(ids.size()),
            static_cast<int64_t>(block_experts.size()),
            2,
            static_cast<int32_t>(starts.size()),
            11,
            13};
  }

  bool operator==(const SortResult&) const = default;

  Ints ids;
  std::vector<float> weights;
  Ints block_experts;
  Ints valid;
  Ints inverse;
  Ints counts;
  Ints ends;
  Ints starts;
  Ints problems;
  Ints status;
};

/// The specification, read aloud: for each expert in turn, its pairs in order, then padding.
SortResult reference_sort(const SortCase& c) {
  SortResult r(c);
  const int64_t tokens = c.local_tokens.empty() ? c.tokens : c.local_tokens[0];
  const bool packed = c.format != PairFormat::kFlat;
  int32_t padding = static_cast<int32_t>(c.tokens * c.top_k);
  if (packed) padding = static_cast<int32_t>(tokens);
  if (c.format == PairFormat::kPacked) padding |= c.top_k << 24;

  std::fill(r.ids.begin(), r.ids.end(), padding);
  std::fill(r.weights.begin(), r.weights.end(), 0.0F);
  std::fill(r.inverse.begin(), r.inverse.end(), -1);
  const bool labelled = c.kind == ExpertTable::kLabel;
  const int32_t unused = labelled && c.unused_expert >= 0 ? c.table[0] : c.unused_expert;
  std::fill(r.block_experts.begin(), r.block_experts.end(), unused);
  std::fill(r.status.begin(), r.status.end(), 0);

  int32_t running_local = 0;
  Ints expert_of_bin(static_cast<size_t>(c.experts), -1);
  for (int32_t expert = 0; expert < c.experts; ++expert) {
    int32_t bin = expert;
    if (c.kind == ExpertTable::kMap) bin = c.table[static_cast<size_t>(expert)];
    if (c.kind == ExpertTable::kMask) {
      bin = c.table[static_cast<size_t>(expert)] != 0 ? running_local++ : -1;
    }
    if (bin >= 0) expert_of_bin[static_cast<size_t>(bin)] = expert;
  }

  int32_t position = 0;
  for (int32_t bin = 0; bin < c.experts; ++bin) {
    const auto b = static_cast<size_t>(bin);
    const int32_t start = position;
    for (int64_t pair = 0; pair < tokens * c.top_k; ++pair) {
      const auto p = static_cast<size_t>(pair);
      if (expert_of_bin[b] < 0 || c.ids[p] != expert_of_bin[b]) continue;
      const int64_t slot = pair % c.top_k;
      const auto at = static_cast<size_t>(position);
      r.ids[at] =
          packed ? static_cast<int32_t>(slot << 24 | pair / c.top_k) : static_cast<int32_t>(pair);
      r.weights[at] = c.weights[p];
      r.inverse[p] = position++;
    }
    r.counts[b] = position - start;
    while (position % c.block_size != 0) ++position;
    r.starts[b] = start;
    r.ends[b] = position;
    r.problems[3 * b] = r.counts[b];
    r.problems[3 * b + 1] = 11;
    r.problems[3 * b + 2] = 13;
    for (int32_t i = start; i < position; i += c.block_size) {
      r.block_experts[static_cast<size_t>(i / c.block_size)] = labelled ? c.table[b] : bin;
    }
  }
  r.starts.back() = position;
  r.valid = {position, static_cast<int32_t>(tokens)};
  for (int64_t pair = 0; pair < tokens * c.top_k; ++pair) {
    const int32_t id = c.ids[static_cast<size_t>(pair)];
    r.status[kStatusOutside] += id < 0 || id >= c.experts;
  }
  return r;
}

SortResult emulated_sort(const SortCase& c) {
  SortResult r(c);
  Ints workspace(static_cast<size_t>(moe_sort_workspace_gpu(c.input())), -9);
  moe_sort_gpu(c.input(), r.output(), workspace.data(), nullptr);
  return r;
}

SortResult twin_sort(const SortCase& c) {
  SortResult r(c);
  Ints workspace(static_cast<size_t>(moe_sort_workspace_cpu(c.input())), -9);
  moe_sort_cpu(c.input(), r.output(), workspace.data(), in_pieces);
  return r;
}

std::string describe(const SortCase& c) {
  return "experts " + std::to_string(c.experts) + ", top_k " + std::to_string(c.top_k) +
         ", tokens " + std::to_string(c.tokens) + ", block " + std::to_string(c.block_size) +
         ", table " + std::to_string(static_cast<int>(c.kind)) + ", format " +
         std::to_string(static_cast<int>(c.format)) + ", threads " +
         std::to_string(gpu::emulated::settings().threads);
}

void check_sorts(Random& random, int cases) {
  auto& settings = gpu::emulated::settings();
  for (int i = 0; i < cases; ++i) {
    vary_settings(random);
    settings.one_block_items = pick(random, 0, 2) == 0 ? 4096 : 100;
    // Little shared memory makes the kernels take the experts in several rounds.
    settings.shared_limit = pick(random, 0, 2) == 0 ? 512 : 48 * 1024;
    const SortCase c = random_sort_case(random);
    const SortResult expected = reference_sort(c);
    CHECK_WITH(twin_sort(c) == expected, "CPU twin, " + describe(c));
    CHECK_WITH(emulated_sort(c) == expected, "kernel, " + describe(c));
  }
  settings.shared_limit = 48 * 1024;
}

void check_sort_that_does_not_fit(Random& random) {
  SortCase c = random_sort_case(random);
  while (c.tokens == 0 || c.kind != ExpertTable::kNone || !c.local_tokens.empty()) {
    c = random_sort_case(random);
  }
  const int32_t needed = reference_sort(c).valid[0];
  c.length = needed - 1;
  for (const int64_t one_block_items : {0, 4096}) {
    gpu::emulated::settings().one_block_items = one_block_items;
    CHECK(needed == 0 || emulated_sort(c).status[kStatusTooLong] > 0);
    CHECK(needed == 0 || twin_sort(c).status == emulated_sort(c).status);
  }
}

void check_repeated_experts_are_counted() {
  SortCase c;
  c.experts = 3;
  c.top_k = 2;
  c.tokens = 3;
  c.block_size = 2;
  c.format = PairFormat::kPacked;
  c.ids = {0, 1, 2, 2, 1, 1};
  c.weights.assign(6, 0.5F);
  c.length = 12;
  for (const int64_t one_block_items : {0, 4096}) {
    gpu::emulated::settings().one_block_items = one_block_items;
    CHECK(emulated_sort(c).status[kStatusRepeated] == 2);
  }
  CHECK(twin_sort(c).status[kStatusRepeated] == 2);
}

/// Decode is one launch; a large sort takes the same number of launches for any number of experts.
void check_launches() {
  auto& settings = gpu::emulated::settings();
  settings = {};
  settings.one_block_items = 4096;
  settings.threads = 64;
  Random random(5);
  const auto launches = [&](int64_t tokens, int32_t experts) {
    SortCase c;
    c.experts = experts;
    c.top_k = 1;
    c.tokens = tokens;
    c.block_size = 4;
    c.length = tokens + 3 * int64_t{experts};
    for (int64_t i = 0; i < tokens; ++i) c.ids.push_back(pick(random, 0, experts - 1));
    c.weights.assign(c.ids.size(), 1.0F);
    const int64_t before = settings.launches;
    static_cast<void>(emulated_sort(c));
    return settings.launches - before;
  };
  CHECK(launches(64, 512) == 1);
  CHECK(launches(5000, 2) == 6);
  CHECK(launches(5000, 2000) == 6);
}

struct RoutingResult {
  Ints ids;
  std::vector<float> weights;
  bool operator==(const RoutingResult&) const = default;
};

template <typename Run>
RoutingResult run_routing(const RoutingInput& in, const Run& run) {
  const auto size = static_cast<size_t>(in.layers * in.tokens * (in.top_k + in.shared));
  RoutingResult r{Ints(size, -7), std::vector<float>(size, -7.0F)};
  run(in, RoutingOutput{r.ids.data(), r.weights.data()});
  return r;
}

void check_routings(Random& random, int cases) {
  for (int i = 0; i < cases; ++i) {
    vary_settings(random);
    RoutingInput in{};
    in.groups = std::vector{1, 1, 2, 4}[pick(random, 0, 3)];
    in.experts = in.groups * pick(random, 1, pick(random, 0, 2) == 0 ? 100 : 8);
    in.groups_chosen = pick(random, 1, in.groups);
    const int32_t reachable = in.experts / in.groups * in.groups_chosen;
    in.top_k =
        pick(random, 0, 2) == 0 ? std::min(reachable, 32) : pick(random, 1, std::min(reachable, 8));
    in.shared = pick(random, 0, 2);
    in.layers = pick(random, 1, 2);
    in.tokens = pick(random, 0, 60);
    in.seed = random();
    in.counted = in.groups == 1 && pick(random, 0, 1) == 0;
    const opreplay::Loads loads = opreplay::zipf_loads(in.experts, pick(random, 0, 3));
    Ints table;
    for (int64_t layer = 0; layer < in.layers; ++layer) {
      const Ints order = opreplay::random_order(in.experts, in.seed, layer);
      const opreplay::Loads scattered = opreplay::scatter_loads(loads, order);
      const Ints row =
          in.counted ? opreplay::count_table_of(
                           opreplay::apportion(scattered, in.tokens * in.top_k, in.tokens), order)
                     : opreplay::draw_table_of(scattered, in.groups);
      in.table_stride = static_cast<int64_t>(row.size());
      table.insert(table.end(), row.begin(), row.end());
    }
    in.table = table.data();

    const RoutingResult twin =
        run_routing(in, [](const auto& a, const auto& b) { moe_routing_cpu(a, b, in_pieces); });
    const RoutingResult kernel =
        run_routing(in, [](const auto& a, const auto& b) { moe_routing_gpu(a, b, nullptr); });
    CHECK(twin == kernel);

    const auto width = static_cast<size_t>(in.top_k + in.shared);
    for (size_t row = 0; row < twin.ids.size(); row += width) {
      std::set<int32_t> experts;
      std::set<int32_t> groups;
      float sum = 0.0F;
      for (size_t slot = 0; slot < width; ++slot) {
        const int32_t id = twin.ids[row + slot];
        experts.insert(id);
        if (id < in.experts) groups.insert(id / (in.experts / in.groups));
        CHECK(twin.weights[row + slot] > 0.0F);
        sum += twin.weights[row + slot];
      }
      CHECK(experts.size() == width);
      CHECK(*experts.begin() >= 0 && *experts.rbegin() < in.experts + in.shared);
      CHECK(groups.size() <= static_cast<size_t>(in.groups_chosen));
      CHECK(sum == 1.0F);
    }
  }
}

void check_batched(Random& random, int cases) {
  for (int i = 0; i < cases; ++i) {
    vary_settings(random);
    const int32_t experts = pick(random, 1, 40);
    const int32_t max_tokens = pick(random, 1, 30);
    const int32_t block = pick(random, 1, 9);
    Ints tokens;
    for (int32_t e = 0; e < experts; ++e) tokens.push_back(pick(random, 0, max_tokens));
    const MoeBatchedInput in{tokens.data(), experts, max_tokens, block};
    const int64_t blocks = int64_t{experts} * ((max_tokens + block - 1) / block);

    Ints ids;
    Ints names;
    for (int32_t e = 0; e < experts; ++e) {
      for (int32_t t = 0; t < tokens[static_cast<size_t>(e)]; ++t)
        ids.push_back(e * max_tokens + t);
      while (ids.size() % static_cast<size_t>(block) != 0) ids.push_back(experts * max_tokens);
      names.resize(ids.size() / static_cast<size_t>(block), e);
    }
    const auto total = static_cast<int32_t>(ids.size());
    ids.resize(static_cast<size_t>(blocks * block), experts * max_tokens);
    names.resize(static_cast<size_t>(blocks), -1);

    const auto check_run = [&](const auto& run) {
      Ints got_ids(ids.size(), -7);
      Ints got_names(names.size(), -7);
      Ints valid(1, -7);
      Ints status(kMoeBatchedStatus, -7);
      Ints workspace(static_cast<size_t>(moe_batched_workspace(in)), -9);
      run(in,
          MoeBatchedOutput{got_ids.data(),
                           got_names.data(),
                           valid.data(),
                           status.data(),
                           static_cast<int64_t>(ids.size()),
                           blocks},
          workspace.data());
      CHECK(got_ids == ids);
      CHECK(got_names == names);
      CHECK(valid[0] == total);
      CHECK(status == Ints(kMoeBatchedStatus, 0));
    };
    check_run(
        [](const auto& a, const auto& b, int32_t* w) { moe_batched_cpu(a, b, w, in_pieces); });
    check_run([](const auto& a, const auto& b, int32_t* w) { moe_batched_gpu(a, b, w, nullptr); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 100;
  Random random(20240607);
  check_sorts(random, cases);
  check_sort_that_does_not_fit(random);
  check_repeated_experts_are_counted();
  check_launches();
  check_routings(random, cases / 2);
  check_batched(random, cases / 4);
  std::printf("moe kernels: ok, %d cases\n", cases);
  return 0;
}
