// SPDX-License-Identifier: MIT
//
// What the loop adds to a call: Call::issue against a callBoxed loop written by hand, the same
// empty operator in the same process, in turns so that both see the same clock.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/timing.h"

namespace {

constexpr int64_t kCalls = 20'000;
constexpr int kTurns = 201;

template <class Body>
double ns_per_call(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(kCalls);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void compare(int64_t arguments) {
  opreplay::Call call = opreplay::empty_call(arguments);
  const c10::OperatorHandle op = call.op();
  const std::vector<c10::IValue> values = call.arguments();
  const auto by_hand = [&] {
    torch::jit::Stack stack;
    for (int64_t i = 0; i < kCalls; ++i) {
      stack.insert(stack.end(), values.begin(), values.end());
      op.callBoxed(&stack);
      stack.clear();
    }
  };
  const opreplay::GradModeGuard guard(opreplay::GradMode::kInference);
  std::vector<double> bare;
  std::vector<double> ours;
  std::vector<double> ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    const bool bare_first = turn % 2 == 0;
    if (bare_first) bare.push_back(ns_per_call(by_hand));
    ours.push_back(ns_per_call([&] { call.issue(kCalls); }));
    if (!bare_first) bare.push_back(ns_per_call(by_hand));
    ratios.push_back(ours.back() / bare.back());
  }
  std::printf("%2lld arguments: by hand %7.1f ns, Call::issue %7.1f ns, ratio %.3f\n",
              static_cast<long long>(arguments),
              median(bare),
              median(ours),
              median(ratios));
}

}  // namespace

int main() {
  compare(10);
  compare(18);
}
