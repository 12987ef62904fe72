// SPDX-License-Identifier: MIT
//
// The device timing code on an accelerator whose every time is known.
//
// All expected times follow from the settings in accelerator.h and the constants below by hand.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerator.h"
#include "opreplay/device_timing.h"
#include "opreplay/graph.h"

#undef CHECK  // torch's, which ends the process
#include "check.h"

namespace {

using accelerator::kDevice;
using accelerator::reset;
using accelerator::simulator;
using opreplay::Call;
using opreplay::Cold;
using opreplay::DeviceTimer;
using opreplay::DeviceTimes;
using opreplay::Graph;
using opreplay::Samples;
using opreplay::TimingPlan;

/// What the operators of these tests take and do.
struct Behaviour {
  int64_t host_ns = 5000;    // besides queueing one kernel, which takes 1,000 more
  int64_t device_ns = 3000;  // with its inputs in cache
  int64_t throws_at = -1;    // the call that throws, counted from zero
  bool captures = true;
  bool waits = false;
  bool lies_in_a_graph = false;
  int64_t kernels = 1;
  int64_t calls = 0;
};

Behaviour behaviour;

at::Tensor work(const at::Tensor& a, const at::Tensor& weight) {
  auto& sim = simulator();
  sim.log.emplace_back("call");
  TORCH_CHECK(behaviour.calls++ != behaviour.throws_at, "the operator failed");
  TORCH_CHECK(behaviour.captures || sim.recording == nullptr,
              "operation not permitted when stream is capturing\nand more lines");
  sim.host_now += behaviour.host_ns;
  at::Tensor out = at::empty({1}, a.options());
  const bool lies = behaviour.lies_in_a_graph && sim.recording != nullptr;
  for (int64_t i = 0; i < behaviour.kernels; ++i) {
    sim.host_now += sim.settings.launch_host;
    sim.queue(sim.current, [a, weight, out, lies, ns = behaviour.device_ns](int64_t) {
      auto& sim = simulator();
      int64_t misses = 0;
      for (const at::Tensor& input : {a, weight}) {
        sim.touched.push_back(input.storage().data());
        misses += !sim.touch(input.storage().data(), static_cast<int64_t>(input.nbytes()));
      }
      const float first = a.numel() > 0 ? *a.const_data_ptr<float>() : 0.0F;
      out.mutable_data_ptr<float>()[0] = first + (lies ? 1.0F : 0.0F);
      return ns + misses * sim.settings.miss;
    });
  }
  if (behaviour.waits) sim.synchronize(sim.current);
  return out;
}

void add_one(at::Tensor a) {
  auto& sim = simulator();
  sim.host_now += behaviour.host_ns + sim.settings.launch_host;
  sim.queue(sim.current, [a](int64_t) {
    auto& sim = simulator();
    float& value = *a.mutable_data_ptr<float>();
    sim.largest_value = std::max(sim.largest_value, value);
    value += 1;
    return behaviour.device_ns +
           !sim.touch(a.storage().data(), static_cast<int64_t>(a.nbytes())) * sim.settings.miss;
  });
}

TORCH_LIBRARY(accelerator_test, library) {
  library.def("work(Tensor a, Tensor weight) -> Tensor", &work);
  library.def("add_one_(Tensor(a!) a) -> ()", &add_one);
  library.def("nothing(Tensor a) -> ()", [](const at::Tensor&) { simulator().host_now += 100; });
}

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

at::Tensor on_device(int64_t floats) {
  return at::zeros({floats}, at::TensorOptions().device(kDevice));
}

/// A call whose inputs of 4 KiB and 16 KiB fit into the cache of 1 MiB fifty times over.
Call work_call(int64_t floats = 1 << 10, int64_t weights = 1 << 12) {
  return Call(find("accelerator_test::work"), {on_device(floats), on_device(weights)});
}

/// Twice the cache and 8 KiB: 103 copies of 20 KiB do not fit.
void leave_room_for_the_flush_buffer() {
  simulator().settings.memory = simulator().allocated + 2 * (1 << 20) + (1 << 13);
}

TimingPlan quick() {
  TimingPlan plan;
  plan.warmup_ns = 1'000'000;
  plan.limit_ns = 2'000'000'000;
  plan.max_samples = 30;
  return plan;
}

DeviceTimes time(Call call, Cold cold = Cold::kOff) {
  std::vector<Call> unit{std::move(call)};
  return DeviceTimer(kDevice).time(unit, quick(), cold);
}

void check_all(const std::optional<Samples>& samples, double ns) {
  CHECK(samples.has_value());
  CHECK(samples->ns.size() >= 5);
  for (const double sample : samples->ns) {
    CHECK_WITH(std::abs(sample - ns) < 1e-3,
               "expected " + std::to_string(ns) + ", got " + std::to_string(sample));
  }
}

bool noted(const DeviceTimes& times, const std::string& words) {
  return std::any_of(times.notes.begin(), times.notes.end(), [&](const std::string& note) {
    return note.find(words) != std::string::npos;
  });
}

std::size_t count(const std::vector<std::string>& log, const std::string& what) {
  return static_cast<std::size_t>(std::count(log.begin(), log.end(), what));
}

// ---- the four numbers ----

void the_slope_of_two_graphs_is_the_device_time_exactly() {
  const auto times = time(work_call());
  check_all(times.hot, 3000);
  CHECK(times.hot->route == "graph");
  CHECK(times.notes.empty());
}

void the_slope_on_the_stream_is_the_device_time_exactly() {
  behaviour.captures = false;
  const auto times = time(work_call());
  check_all(times.hot, 3000);
  CHECK(times.hot->route == "stream");
}

void host_time_is_what_issuing_costs_whatever_the_device_takes() {
  for (const int64_t device_ns : {1000, 3000, 400'000}) {
    reset();
    behaviour.device_ns = device_ns;
    check_all(time(work_call()).host, 6000);
  }
}

void device_time_is_what_the_device_takes_whatever_issuing_costs() {
  for (const bool captures : {true, false}) {
    for (const int64_t host_ns : {0, 5000, 90'000}) {
      reset();
      behaviour.captures = captures;
      behaviour.host_ns = host_ns;
      const auto times = time(work_call());
      check_all(times.hot, 3000);
      check_all(times.host, static_cast<double>(host_ns) + 1000);
    }
  }
}

void latency_is_issue_and_device_and_the_way_back() {
  check_all(time(work_call()).latency, 5000 + 1000 + 3000 + 900);
}

void floors_are_those_of_work_that_does_nothing() {
  const auto times = time(work_call());
  CHECK(std::abs(times.hot->floor_ns - 250) < 1e-3);
  CHECK(std::abs(times.latency->floor_ns - (1000 + 250 + 900)) < 1e-3);
}

void several_calls_are_one_unit() {
  std::vector<Call> unit{work_call(), work_call(), work_call()};
  const auto times = DeviceTimer(kDevice).time(unit, quick(), Cold::kAll);
  check_all(times.hot, 9000);
  check_all(times.host, 18000);
  check_all(times.cold, 9000 + 6 * 2000);
}

void warm_up_lasts_as_long_as_asked() {
  std::vector<Call> unit{work_call()};
  TimingPlan plan = quick();
  plan.warmup_ns = 50'000'000;
  const int64_t begin = simulator().host_now;
  static_cast<void>(DeviceTimer(kDevice).time(unit, plan, Cold::kOff));
  const auto& log = simulator().log;
  const auto first_gate = std::find(log.begin(), log.end(), "close");
  // a call takes at least the host's 6 us; 50 ms hold no fewer than 5,000 of them at 10 us each
  CHECK(std::count(log.begin(), first_gate, "call") >= 5000);
  CHECK(simulator().host_now - begin > 50'000'000);
}

// ---- order ----

void a_window_is_closed_recorded_launched_recorded_opened_and_waited_for() {
  static_cast<void>(time(work_call()));
  std::vector<std::string> log = simulator().log;
  const auto launch =
      std::find_if(log.rbegin(),
                   log.rend(),
                   [](const std::string& entry) { return entry.rfind("launch", 0) == 0; })
          .base() -
      1;
  const std::vector<std::string> around(launch - 2, launch + 4);
  const std::vector<std::string> expected{"close", "record", *launch, "record", "open", "wait"};
  CHECK(around == expected);
  const auto first_capture = std::find(log.begin(), log.end(), "capture");
  CHECK(std::find(log.begin(), first_capture, "call") != first_capture);
}

void r41_a_start_event_never_stands_on_an_idle_stream() {
  for (const bool captures : {true, false}) {
    behaviour.captures = captures;
    static_cast<void>(time(work_call(), Cold::kAll));
    CHECK(count(simulator().log, "record") > 100);
    CHECK(count(simulator().log, "record on an idle stream") == 0);
  }
}

void r50_the_gate_never_stands_before_an_operator_that_has_not_run() {
  static_cast<void>(time(work_call()));
  const auto& log = simulator().log;
  const auto first_gate = std::find(log.begin(), log.end(), "close");
  CHECK(std::count(log.begin(), first_gate, "call") >= 2);
  CHECK(std::find(log.begin(), first_gate, "synchronize") != first_gate);
}

void r45_a_graph_holds_at_most_1024_calls() {
  behaviour.device_ns = 1;  // so short that a window would hold a million
  static_cast<void>(time(work_call(), Cold::kAll));
  const auto& sizes = simulator().graph_sizes;
  CHECK(!sizes.empty());
  CHECK(*std::max_element(sizes.begin(), sizes.end()) == 1024);
  try {
    const Graph graph({work_call()}, kDevice, 1025);
    CHECK_WITH(false, "nothing was thrown");
  } catch (const c10::ValueError& error) {
    CHECK(std::string(error.what()).find("1 to 1024 calls") != std::string::npos);
  }
}

void at_most_512_launches_wait_behind_the_gate() {
  behaviour.captures = false;
  behaviour.device_ns = 1;
  static_cast<void>(time(work_call()));
  CHECK(simulator().longest_queue <= 512 + 2);  // and the two events
  CHECK(simulator().longest_queue >= 512);
}

void a_queue_that_many_kernels_fill_early_is_used_less() {
  behaviour.captures = false;
  behaviour.kernels = 7;
  const auto times = time(work_call());
  check_all(times.hot, 7 * 3000);
  check_all(times.host, 5000 + 7 * 1000);
  CHECK(times.hot->discarded == 0);
}

// ---- cold ----

void cold_is_the_time_with_every_input_out_of_cache() {
  const auto times = time(work_call(), Cold::kAll);
  check_all(times.cold, 3000 + 2 * 2000);
  check_all(times.hot, 3000);
  CHECK(times.cold->route == "graph");
}

void r31_rotation_touches_copies_of_twice_the_cache_and_each_of_them() {
  static_cast<void>(time(work_call(), Cold::kOff));
  const std::set<const void*> before(simulator().touched.begin(), simulator().touched.end());
  reset();
  static_cast<void>(time(work_call(), Cold::kAll));
  const std::set<const void*> after(simulator().touched.begin(), simulator().touched.end());
  const auto copies = static_cast<int64_t>(after.size() - before.size()) / 2;
  CHECK(copies * (4096 + 16384) >= 2 * (1 << 20));
  CHECK(copies == 103);  // the least that do: 2 MiB / 20 KiB = 102.4
}

void cold_windows_hold_whole_turns_of_the_copies() {
  const auto times = time(work_call(), Cold::kAll);
  CHECK(times.cold->batch % 103 == 0);
}

void more_copies_than_a_graph_holds_are_spread_over_several() {
  const auto times = time(work_call(64, 128), Cold::kAll);     // 768 bytes: 2,731 copies
  check_all(times.cold, 3000 + 2 * 2000 + 3.0 * 2500 / 2731);  // a start of each graph in a turn
  CHECK(noted(times, "2731 copies in 3 graphs"));
  CHECK(times.cold->batch == 2 * 2731);
}

void cold_weights_leaves_activations_warm() {
  check_all(time(work_call(), Cold::kWeights).cold, 3000 + 2000);
}

void where_memory_forbids_copies_the_cache_is_flushed() {
  const Call call = work_call();
  leave_room_for_the_flush_buffer();
  const auto times = time(call, Cold::kAll);
  check_all(times.cold, 3000 + 2 * 2000);  // the flush itself is taken out
  CHECK(noted(times, "the cache was flushed"));
}

void r31_the_flush_buffer_is_twice_the_cache_and_made_once() {
  const Call call = work_call();
  leave_room_for_the_flush_buffer();
  DeviceTimer timer(c10::Device(accelerator::kType));  // without an index
  for (int i = 0; i < 2; ++i) {
    std::vector<Call> unit{call};
    static_cast<void>(timer.time(unit, quick(), Cold::kAll));
  }
  CHECK(simulator().large_buffers == std::vector<int64_t>{2 * (1 << 20)});
}

void r49_inputs_are_built_before_the_flush() {
  behaviour.captures = false;  // so that each call shows in the log
  const Call call = work_call();
  simulator().log.clear();
  leave_room_for_the_flush_buffer();
  static_cast<void>(time(call, Cold::kAll));
  const auto& log = simulator().log;
  const auto first = std::find(log.begin(), log.end(), "flush");
  CHECK(first != log.end());
  CHECK(std::find(first, log.end(), "copy") == log.end());
  for (auto at = first; at + 1 != log.end(); ++at) {
    if (*at == "flush") CHECK(at[1] == "flush" || at[1] == "call" || at[1] == "record");
  }
}

void a_call_without_inputs_has_no_cold_time_and_says_so() {
  const auto times = time(Call(find("accelerator_test::work"), {on_device(0), on_device(0)}));
  CHECK(!times.cold.has_value());
}

// ---- what operators do ----

void updated_arguments_start_every_window_from_their_own_values() {
  const auto times = time(Call(find("accelerator_test::add_one_"), {on_device(16)}));
  check_all(times.hot, 3000);
  CHECK(simulator().largest_value <= 63);
}

void updated_arguments_are_cold_although_they_are_restored() {
  const auto times =
      time(Call(find("accelerator_test::add_one_"), {on_device(1 << 14)}), Cold::kAll);
  check_all(times.cold, 5000);
  CHECK(simulator().largest_value <= 63);
}

void an_operator_that_cannot_be_captured_is_timed_on_the_stream_and_says_so() {
  behaviour.captures = false;
  const auto times = time(work_call(), Cold::kAll);
  CHECK(simulator().recording == nullptr);
  CHECK(times.hot->route == "stream" && times.cold->route == "stream");
  check_all(times.cold, 3000 + 2 * 2000);
  CHECK(noted(times,
              "cannot be captured in a graph (operation not permitted when stream is "
              "capturing): device times come from the stream route"));
}

void r46_a_graph_that_computes_other_values_is_not_timed() {
  behaviour.lies_in_a_graph = true;
  const auto times = time(work_call());
  CHECK(times.hot->route == "stream");
  CHECK(noted(times, "computes other values"));
}

void an_operator_that_waits_for_the_device_does_not_hang_behind_the_gate() {
  behaviour.waits = true;
  const auto times = time(work_call(), Cold::kAll);
  CHECK(noted(times, "waits for the device itself"));
  CHECK(times.hot->route == "stream");
  check_all(times.host, 5000 + 1000 + 3000 + 900);
}

void an_operator_that_queues_nothing_has_no_device_time() {
  const auto times = time(Call(find("accelerator_test::nothing"), {on_device(4)}), Cold::kAll);
  check_all(times.host, 100);
  CHECK(!times.hot.has_value() && !times.cold.has_value());
  CHECK(noted(times, "it queues no work"));
}

void an_operator_that_changes_sizes_has_a_host_time_only() {
  const auto unsqueeze = find("aten::unsqueeze_");
  const auto times = time(Call(unsqueeze, {at::ones({3}), 0}));
  CHECK(!times.host.ns.empty());
  CHECK(!times.hot.has_value() && !times.latency.has_value());
}

// ---- what goes wrong ----

void a_throw_at_any_call_leaves_gate_open_and_stream_idle() {
  behaviour.throws_at = -1;
  behaviour.calls = 0;
  static_cast<void>(time(work_call(), Cold::kAll));
  const int64_t all = behaviour.calls;
  for (int64_t at = 0; at < all; at += std::max<int64_t>(1, all / 40)) {
    reset();
    behaviour = Behaviour();
    behaviour.throws_at = at;
    DeviceTimer timer(kDevice);
    std::vector<Call> unit{work_call()};
    try {
      const auto times = timer.time(unit, quick(), Cold::kAll);
      CHECK(noted(times, "cannot be captured"));  // it threw in a capture
    } catch (const c10::Error& error) {
      CHECK(std::string(error.what()).find("the operator failed") != std::string::npos);
    }
    auto& sim = simulator();
    CHECK(sim.recording == nullptr);
    CHECK(!sim.timed_out);
    CHECK(sim.streams[1].pending.empty() && sim.idle(1));
    CHECK(sim.current == 0);
    behaviour.throws_at = -1;
    check_all(timer.time(unit, quick(), Cold::kOff).hot, 3000);  // usable again
  }
}

void samples_under_a_throttled_clock_are_discarded_and_counted() {
  // Five readings tell the steady clock, the floors take theirs; every third of the rest is slow.
  simulator().settings.clock = [](int64_t n) { return n > 60 && n % 3 == 0 ? 0.74 : 1.0; };
  const auto times = time(work_call());
  check_all(times.hot, 3000);
  CHECK(times.hot->discarded > 0);
  CHECK(noted(times, "under 75 % of its steady clock"));
}

void a_device_without_a_back_end_is_refused() {
  try {
    const DeviceTimer timer{c10::Device("cpu")};
    CHECK_WITH(false, "nothing was thrown");
  } catch (const c10::NotImplementedError& error) {
    CHECK(std::string(error.what()).find("no GPU part for cpu") != std::string::npos);
  }
}

// ---- graphs ----

void a_graph_replays_what_it_captured() {
  const at::Tensor a = on_device(4);
  Graph graph({Call(find("accelerator_test::work"), {a, on_device(4)})}, kDevice, 3);
  CHECK(graph.calls() == 3 && graph.nodes() == 3);
  *a.mutable_data_ptr<float>() = 7;
  CHECK(*graph.outputs().at(0).toTensor().const_data_ptr<float>() != 7);
  graph.replay(2);
  graph.synchronize();
  CHECK(*graph.outputs().at(0).toTensor().const_data_ptr<float>() == 7);
}

const std::vector<std::pair<const char*, std::function<void()>>> tests = {
#define TEST(name) {#name, name}
    TEST(the_slope_of_two_graphs_is_the_device_time_exactly),
    TEST(the_slope_on_the_stream_is_the_device_time_exactly),
    TEST(host_time_is_what_issuing_costs_whatever_the_device_takes),
    TEST(device_time_is_what_the_device_takes_whatever_issuing_costs),
    TEST(latency_is_issue_and_device_and_the_way_back),
    TEST(floors_are_those_of_work_that_does_nothing),
    TEST(several_calls_are_one_unit),
    TEST(warm_up_lasts_as_long_as_asked),
    TEST(a_window_is_closed_recorded_launched_recorded_opened_and_waited_for),
    TEST(r41_a_start_event_never_stands_on_an_idle_stream),
    TEST(r50_the_gate_never_stands_before_an_operator_that_has_not_run),
    TEST(r45_a_graph_holds_at_most_1024_calls),
    TEST(at_most_512_launches_wait_behind_the_gate),
    TEST(a_queue_that_many_kernels_fill_early_is_used_less),
    TEST(cold_is_the_time_with_every_input_out_of_cache),
    TEST(r31_rotation_touches_copies_of_twice_the_cache_and_each_of_them),
    TEST(cold_windows_hold_whole_turns_of_the_copies),
    TEST(more_copies_than_a_graph_holds_are_spread_over_several),
    TEST(cold_weights_leaves_activations_warm),
    TEST(where_memory_forbids_copies_the_cache_is_flushed),
    TEST(r31_the_flush_buffer_is_twice_the_cache_and_made_once),
    TEST(r49_inputs_are_built_before_the_flush),
    TEST(a_call_without_inputs_has_no_cold_time_and_says_so),
    TEST(updated_arguments_start_every_window_from_their_own_values),
    TEST(updated_arguments_are_cold_although_they_are_restored),
    TEST(an_operator_that_cannot_be_captured_is_timed_on_the_stream_and_says_so),
    TEST(r46_a_graph_that_computes_other_values_is_not_timed),
    TEST(an_operator_that_waits_for_the_device_does_not_hang_behind_the_gate),
    TEST(an_operator_that_queues_nothing_has_no_device_time),
    TEST(an_operator_that_changes_sizes_has_a_host_time_only),
    TEST(a_throw_at_any_call_leaves_gate_open_and_stream_idle),
    TEST(samples_under_a_throttled_clock_are_discarded_and_counted),
    TEST(a_device_without_a_back_end_is_refused),
    TEST(a_graph_replays_what_it_captured),
#undef TEST
};

}  // namespace

int main() {
  int failed = 0;
  for (const auto& [name, test] : tests) {
    reset();
    behaviour = Behaviour();
    try {
      test();
    } catch (const std::exception& error) {
      ++failed;
      const std::string what = error.what();
      std::printf("FAILED %s: %s\n", name, what.substr(0, what.find("\nException raised")).c_str());
    }
  }
  std::printf("%zu tests, %d failed\n", tests.size(), failed);
  return failed == 0 ? 0 : 1;
}
