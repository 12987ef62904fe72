// SPDX-License-Identifier: MIT
//
// Calls, copies and the timing loop as a C++ program uses them.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/operator.h"
#include "opreplay/random.h"
#include "opreplay/timing.h"

#undef CHECK  // torch's, which ends the process
#include "check.h"

namespace {

using opreplay::Call;
using opreplay::GradMode;
using opreplay::GradModeGuard;
using opreplay::OperatorIndex;
using opreplay::TimingPlan;

int64_t calls_made = 0;
std::vector<const void*> storages_seen;

at::Tensor count(const at::Tensor& a) {
  ++calls_made;
  storages_seen.push_back(a.const_data_ptr());
  return a;
}

void add_one(at::Tensor a) { a.add_(1); }

TORCH_LIBRARY(opreplay_test, library) {
  library.def("count(Tensor a) -> Tensor", &count);
  library.def("add_one_(Tensor(a!) a) -> ()", &add_one);
  library.def("fail(Tensor a) -> Tensor", [](const at::Tensor& a) -> at::Tensor {
    TORCH_CHECK_VALUE(false, "refused ", a.numel());
  });
}

c10::OperatorHandle find(const std::string& name) {
  const OperatorIndex index;
  const auto& overloads = index.overloads(name);
  CHECK_WITH(overloads.size() == 1, name);
  return overloads.front();
}

void index_finds_every_overload_of_a_name() {
  const OperatorIndex index;
  std::vector<std::string> overloads;
  for (const auto& op : index.overloads("aten::mm")) {
    overloads.push_back(op.operator_name().overload_name);
  }
  CHECK(overloads.size() >= 2 && overloads[0].empty());
  CHECK(index.overloads("aten::no_such_operator").empty());
}

void issue_makes_as_many_calls_as_asked() {
  Call call(find("opreplay_test::count"), {at::ones({2})});
  calls_made = 0;
  call.issue(7);
  CHECK(calls_made == 7);
}

void run_returns_the_outputs() {
  Call call(find("opreplay_test::count"), {at::ones({2})});
  CHECK(call.run().at(0).toTensor().equal(at::ones({2})));
}

void a_wrong_number_of_arguments_is_refused() {
  try {
    Call call(find("opreplay_test::count"), {});
    CHECK_WITH(false, "nothing was thrown");
  } catch (const c10::ValueError& error) {
    CHECK(std::string(error.what()).find("takes 1 arguments, got 0") != std::string::npos);
  }
}

void what_an_operator_throws_comes_through_and_the_call_stays_usable() {
  Call call(find("opreplay_test::fail"), {at::ones({3})});
  for (int i = 0; i < 2; ++i) {
    try {
      call.issue(1);
      CHECK_WITH(false, "nothing was thrown");
    } catch (const c10::ValueError& error) {
      CHECK(std::string(error.what()).find("refused 3") != std::string::npos);
    }
  }
}

void copies_share_storages_as_the_original_does() {
  const at::Tensor base = at::arange(6).to(at::kFloat);
  const auto cat = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cat", "");
  const Call call(cat, {std::vector<at::Tensor>{base, base.slice(0, 0, 2)}, 0});
  CHECK(call.argument_bytes() == 24);
  for (const Call& copy : call.copies(3, at::zeros({1 << 16}, at::kByte))) {
    const auto tensors = copy.arguments()[0].toTensorVector();
    CHECK(tensors[0].storage().data() == tensors[1].storage().data());
    CHECK(tensors[0].storage().data() != base.storage().data());
    CHECK(copy.run().at(0).toTensor().equal(call.run().at(0).toTensor()));
  }
}

void timing_restores_what_an_operator_updates() {
  const at::Tensor a = at::zeros({4});
  Call call(find("opreplay_test::add_one_"), {a});
  TimingPlan plan;
  plan.max_samples = 5;
  CHECK(opreplay::time_call(call, plan).ns.size() >= 1);
  CHECK(a.max().item<float>() <= 64);
}

void rotation_touches_every_copy_in_every_sample() {
  std::vector<Call> calls =
      Call(find("opreplay_test::count"), {at::ones({16})}).copies(4, at::Tensor());
  TimingPlan plan;
  plan.warmup_ns = 0;
  plan.max_samples = 2;
  plan.relative_error = 1e-9;
  storages_seen.clear();
  const auto samples = opreplay::time_rotated(calls, plan, at::ones({1 << 16}, at::kByte));
  CHECK(samples.batch == 4);
  CHECK(storages_seen.size() == 4 * samples.ns.size());
  for (std::size_t i = 4; i < storages_seen.size(); ++i) {
    CHECK(storages_seen[i] == storages_seen[i - 4]);
    CHECK(storages_seen[i] != storages_seen[i - 1]);
  }
}

void grad_mode_holds_for_the_guards_lifetime() {
  const bool before = c10::InferenceMode::is_enabled();
  {
    const GradModeGuard guard(GradMode::kInference);
    CHECK(c10::InferenceMode::is_enabled());
  }
  CHECK(c10::InferenceMode::is_enabled() == before);
}

void the_same_seed_fills_the_same_bits() {
  const at::Tensor a = at::zeros({1000});
  const at::Tensor b = at::zeros({1000});
  opreplay::fill_random(a, 7, 1);
  opreplay::fill_random(b, 7, 1);
  CHECK(a.equal(b));
  CHECK(a.min().item<float>() >= -1 && a.max().item<float>() < 1);
  opreplay::fill_random(b, 8, 1);
  CHECK(!a.equal(b));
}

}  // namespace

int main() {
  const std::vector<std::pair<const char*, std::function<void()>>> tests = {
      {"index_finds_every_overload_of_a_name", index_finds_every_overload_of_a_name},
      {"issue_makes_as_many_calls_as_asked", issue_makes_as_many_calls_as_asked},
      {"run_returns_the_outputs", run_returns_the_outputs},
      {"a_wrong_number_of_arguments_is_refused", a_wrong_number_of_arguments_is_refused},
      {"what_an_operator_throws_comes_through_and_the_call_stays_usable",
       what_an_operator_throws_comes_through_and_the_call_stays_usable},
      {"copies_share_storages_as_the_original_does", copies_share_storages_as_the_original_does},
      {"timing_restores_what_an_operator_updates", timing_restores_what_an_operator_updates},
      {"rotation_touches_every_copy_in_every_sample", rotation_touches_every_copy_in_every_sample},
      {"grad_mode_holds_for_the_guards_lifetime", grad_mode_holds_for_the_guards_lifetime},
      {"the_same_seed_fills_the_same_bits", the_same_seed_fills_the_same_bits},
  };
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      test();
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", name, error.what());
    }
  }
  std::printf("%zu tests, %d failed\n", tests.size(), failed);
  return failed == 0 ? 0 : 1;
}
