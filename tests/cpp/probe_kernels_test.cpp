// SPDX-License-Identifier: MIT
//
// The gate and the clock kernel, on the emulated GPU.
#include "kernels/probe.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using namespace opreplay::kernels;

constexpr int64_t kLong = 60'000'000'000;  // a minute

void an_open_gate_lets_the_stream_pass() {
  ProbeWords words{1, 0, 0, 0};
  gate_gpu(&words, kLong, nullptr);
  CHECK(words.timed_out == 0);
}

void a_closed_gate_waits_until_the_host_opens_it() {
  ProbeWords words{};
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(&words.open, 1U, __ATOMIC_RELAXED);
  });
  gate_gpu(&words, kLong, nullptr);
  CHECK(__atomic_load_n(&words.open, __ATOMIC_RELAXED) == 1);
  host.join();
  CHECK(words.timed_out == 0);
}

void a_gate_that_nobody_opens_gives_way_and_says_so() {
  ProbeWords words{};
  gate_gpu(&words, 1'000'000, nullptr);
  CHECK(words.timed_out == 1);
}

void the_clock_compares_cycles_with_ticks() {
  ProbeWords words{};
  clock_gpu(&words, nullptr);
  CHECK(words.ticks >= 20'000);
  CHECK(words.cycles >= words.ticks);  // read around them; here both count nanoseconds
  empty_gpu(nullptr);
}

}  // namespace

int main() {
  const std::vector<std::pair<const char*, std::function<void()>>> tests = {
      {"an_open_gate_lets_the_stream_pass", an_open_gate_lets_the_stream_pass},
      {"a_closed_gate_waits_until_the_host_opens_it", a_closed_gate_waits_until_the_host_opens_it},
      {"a_gate_that_nobody_opens_gives_way_and_says_so",
       a_gate_that_nobody_opens_gives_way_and_says_so},
      {"the_clock_compares_cycles_with_ticks", the_clock_compares_cycles_with_ticks},
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
