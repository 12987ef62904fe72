// SPDX-License-Identifier: MIT
//
// Bundles as a C++ program uses them: what it gets, and what mutated files come to.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "library/made_bundle.h"
#include "opreplay/block_tables.h"
#include "opreplay/bundle.h"
#include "opreplay/inputs.h"
#include "opreplay/random.h"
#include "opreplay/timing.h"

#undef CHECK  // torch's, which ends the process
#include "check.h"

/// Counted by counting_new.cpp.
extern std::atomic<int64_t> allocations;

namespace {

using opreplay::Bundle;
using opreplay::Call;
using opreplay::load_bundle;
using opreplay::test::made_bundle;

std::string path_of(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/opreplay_" +
         std::to_string(static_cast<long>(getpid())) + "_" + name;
}

/// A file that is gone when the test is done.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& name) : path(path_of(name)) {}
  ~TemporaryFile() { std::remove(path.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path;
};

void a_bundle_is_read_and_its_calls_are_prepared() {
  const TemporaryFile file("read");
  opreplay::test::write(file.path, made_bundle());
  const Bundle bundle = load_bundle(file.path);
  CHECK(bundle.size() == 2);
  CHECK(bundle.call(0).signature == "aten::mm-signature");
  CHECK(bundle.call(0).bytes() == 48);
  const Call mm = bundle.call(0).prepare(at::kCPU);
  const at::Tensor expected = at::empty({3, 2});
  opreplay::fill_random(expected, 7, uint64_t{1} << 40);
  CHECK(at::equal(mm.arguments()[1].toTensor(), expected));
  const Call embedding = bundle.call(1).prepare(at::kCPU);
  const auto indices = embedding.arguments()[1].toTensor();
  CHECK(at::equal(indices, at::tensor({3, 1, 2}, at::kLong).view({1, 3})));
  CHECK(embedding.run().at(0).toTensor().sizes() == (std::vector<int64_t>{1, 3, 4}));
}

void calls_of_a_shared_bundle_have_tensors_of_their_own() {
  const TemporaryFile file("shared");
  opreplay::test::write(file.path, made_bundle());
  const Bundle bundle = load_bundle(file.path);
  std::vector<std::optional<Call>> made(4);
  std::vector<std::thread> threads;
  for (auto& one : made) {
    threads.emplace_back([&one, bundle] { one.emplace(bundle.call(1).prepare(at::kCPU)); });
  }
  for (auto& thread : threads) thread.join();
  made[0]->arguments()[1].toTensor().zero_();
  for (std::size_t i = 1; i < made.size(); ++i) {
    const auto& one = made[i]->arguments();
    CHECK(one[1].toTensor().sum().item<int64_t>() == 6);
    CHECK(!one[0].toTensor().is_alias_of(made[0]->arguments()[0].toTensor()));
  }
}

void a_program_describes_a_call_itself() {
  opreplay::InputsDescription wanted;
  opreplay::TensorDescription lengths;
  lengths.dtype = at::kInt;
  lengths.sizes = {4};
  lengths.strides = {1};
  lengths.storage_numel = 4;
  wanted.arguments = {lengths, c10::IValue(16), c10::IValue(64), c10::IValue(5)};
  for (const char* text : {"permuted", "", "", "error"}) {
    const std::string value(text);
    wanted.arguments.push_back(value.empty() ? c10::IValue(0) : c10::IValue(value));
  }
  wanted.arguments[5] = c10::IValue(false);
  wanted.arguments.push_back(c10::IValue(3));
  using opreplay::Reference;
  wanted.steps.push_back({"opreplay::seq_lens",
                          "out",
                          {c10::IValue("uniform"),
                           c10::IValue(1),
                           c10::IValue(80),
                           c10::IValue(1.0),
                           c10::IValue(),
                           c10::IValue(),
                           c10::IValue(),
                           c10::IValue(11),
                           Reference{Reference::Kind::kArgument, 0}}});
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("opreplay::block_table", "");
  const Call call(op, opreplay::make_inputs(op, wanted, at::kCPU).arguments);
  opreplay::SeqLenOptions options;
  options.high = 80;
  options.seed = 11;
  const at::Tensor expected = opreplay::seq_lens(4, options);
  CHECK(at::equal(call.arguments()[0].toTensor(), expected));
  opreplay::BlockOptions blocks;
  blocks.seed = 3;
  const auto table = opreplay::block_table(expected, 16, 64, 5, blocks);
  CHECK(at::equal(call.run().at(0).toTensor(), table.table));
}

void issuing_allocates_nothing_of_its_own() {
  const Call empty = opreplay::empty_call(10);
  Call call(empty.op(), empty.arguments());
  call.issue(3);
  const int64_t before = allocations.load();
  call.issue(1000);
  CHECK_WITH(allocations.load() == before, std::to_string(allocations.load() - before));
}

void callbacks_enclose_every_sample_and_no_warm_up() {
  Call call = opreplay::empty_call(2);
  opreplay::TimingPlan plan;
  plan.limit_ns = 5'000'000;
  plan.warmup_ns = 500'000;
  int64_t begun = 0;
  int64_t ended = 0;
  plan.on_before_sample = [&] { CHECK(begun++ == ended); };
  plan.on_after_sample = [&] { CHECK(++ended == begun); };
  const auto samples = opreplay::time_call(call, plan);
  CHECK(begun == static_cast<int64_t>(samples.ns.size()) + samples.discarded);
  CHECK(ended == begun);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Loads a file and makes what it describes, unless that is large; true if nothing was thrown.
bool survives(const std::string& path) {
  constexpr int64_t kMostBytes = 1 << 24;
  try {
    for (const auto& described : load_bundle(path)) {
      if (described.bytes() <= kMostBytes) static_cast<void>(described.prepare(at::kCPU));
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void mutated_files_are_refused_within_a_second() {
  const TemporaryFile file("mutated");
  opreplay::test::write(file.path, made_bundle());
  const std::string good = bytes_of(file.path);
  std::mt19937_64 random(20261202);
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int k = 0; k < changes; ++k) {
      const std::size_t place = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[place] = static_cast<char>(bad[place] ^ (1 << random() % 8));
          break;
        case 1:
          bad.resize(place + 1);
          break;
        case 2:
          bad.insert(place, bad.substr(random() % bad.size(), random() % 64));
          break;
        default:
          bad[place] = static_cast<char>(random());
      }
    }
    std::ofstream(file.path, std::ios::binary) << bad;
    bool survived = true;
    const double took = seconds([&] { survived = survives(file.path); });
    CHECK_WITH(took < 1.0, "mutant " + std::to_string(i));
    CHECK_WITH(!survived || bad == good, "mutant " + std::to_string(i) + " passed as a bundle");
  }
}

/// A value with one of its parts changed at random: what a writer with a mistake would write.
c10::IValue mutated(const c10::IValue& value, std::mt19937_64& random, int& until) {
  static const std::vector<c10::IValue> kOthers{c10::IValue(),
                                                -1,
                                                0,
                                                int64_t{1} << 40,
                                                std::numeric_limits<int64_t>::min(),
                                                std::numeric_limits<int64_t>::max(),
                                                0.5,
                                                true,
                                                "",
                                                "float64",
                                                "aten::neg",
                                                "random",
                                                "integers",
                                                opreplay::test::list({}),
                                                opreplay::test::tuple({"argument", 0, 0}),
                                                opreplay::test::tuple({"output", 0, 0, -1}),
                                                opreplay::test::tuple({"generator", 0, 1, true})};
  if (until-- == 0) return kOthers[random() % kOthers.size()];
  if (value.isGenericDict()) {
    c10::impl::GenericDict made(c10::StringType::get(), c10::AnyType::get());
    for (const auto& entry : value.toGenericDict()) {
      made.insert(entry.key(), mutated(entry.value(), random, until));
    }
    return made;
  }
  if (value.isTuple() || value.isList()) {
    std::vector<c10::IValue> made;
    const auto elements =
        value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
    for (const auto& element : elements) made.push_back(mutated(element, random, until));
    return value.isTuple() ? opreplay::test::tuple(made) : opreplay::test::list(made);
  }
  return value;
}

void well_formed_files_with_wrong_values_do_no_harm() {
  const TemporaryFile file("wrong");
  std::mt19937_64 random(20261203);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    int until = 1 + static_cast<int>(random() % 120);
    opreplay::test::write(file.path, mutated(made_bundle(), random, until));
    bool survived = true;
    const double took = seconds([&] { survived = survives(file.path); });
    CHECK_WITH(took < 1.0, "mutant " + std::to_string(i));
    refused += survived ? 0 : 1;
  }
  CHECK_WITH(refused > 300, std::to_string(refused));
}

}  // namespace

int main(int count, char** words) {
  if (count == 2) {  // other tests want the file
    opreplay::test::write(words[1], made_bundle());
    return 0;
  }
  const std::vector<std::pair<const char*, void (*)()>> tests{
      {"a bundle is read and its calls are prepared", a_bundle_is_read_and_its_calls_are_prepared},
      {"calls of a shared bundle have tensors of their own",
       calls_of_a_shared_bundle_have_tensors_of_their_own},
      {"a program describes a call itself", a_program_describes_a_call_itself},
      {"issuing allocates nothing of its own", issuing_allocates_nothing_of_its_own},
      {"callbacks enclose every sample and no warm-up",
       callbacks_enclose_every_sample_and_no_warm_up},
      {"mutated files are refused within a second", mutated_files_are_refused_within_a_second},
      {"well-formed files with wrong values do no harm",
       well_formed_files_with_wrong_values_do_no_harm},
  };
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      test();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", name, error.what());
      ++failed;
    }
  }
  std::printf("%d of %zu tests failed\n", failed, tests.size());
  return failed == 0 ? 0 : 1;
}
