// SPDX-License-Identifier: MIT
//
// Times on a device, on c10's streams, events and guards alone.
//
// A sample is the difference of two windows with many and few units, divided by the difference of
// their counts: what an event, a launch of a graph and the gate cost is in both and drops out. A
// window stands behind a gate that holds the stream until all of it is queued, so that the host's
// time stays out of it.
#include "opreplay/device_timing.h"

#include <ATen/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "opreplay/graph.h"
#include "sampling.h"

namespace opreplay {

namespace {

constexpr int64_t kMaxQueued = 512;     // a launch queue holds about 1,000, then the host blocks
constexpr int64_t kMaxRotated = 8192;   // calls; with more copies than this, caches are flushed
constexpr int64_t kUpdatingCalls = 64;  // between two restores, as on the CPU
constexpr int64_t kFlushedUnits = 16;   // a flush takes many times what a unit takes
constexpr int64_t kGateLimitNs = 250'000'000;
constexpr int64_t kComparedBytes = 64 << 20;
constexpr double kWindowNs = 1e6;  // a thousand times the step of an event
constexpr double kHostBatchNs = 2e5;
constexpr double kSteady = 0.75;  // of the steady clock; below it a device is throttled

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

/// Copies of a unit that take turns, each with what it needs to start from its own values again.
class Rotation {
 public:
  explicit Rotation(std::vector<std::vector<Call>> turns)
      : turns_(std::move(turns)), issued_(turns_.size(), 0) {
    for (Call& call : turns_.front()) {
      const bool restored = call.updates_arguments() && call.updated_bytes() <= kRestoreLimit;
      updates_ = updates_ || call.updates_arguments();
      pristine_.push_back(restored ? call.updated_values() : std::vector<at::Tensor>());
    }
  }

  [[nodiscard]] int64_t size() const noexcept { return static_cast<int64_t>(turns_.size()); }
  [[nodiscard]] int64_t calls() const noexcept {
    return static_cast<int64_t>(turns_.front().size());
  }
  [[nodiscard]] bool updates() const noexcept { return updates_; }

  /// Issues n units, beginning with the turn of unit `first`.
  void issue(int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) {
      const auto turn = static_cast<std::size_t>(i % size());
      ++issued_[turn];
      for (Call& call : turns_[turn]) call.issue(1);
    }
  }

  /// The same; returns the outputs of the last call.
  [[nodiscard]] torch::jit::Stack issue_and_keep(int64_t first, int64_t n) {
    issue(first, n - 1);
    const auto turn = static_cast<std::size_t>((first + n - 1) % size());
    ++issued_[turn];
    std::vector<Call>& unit = turns_[turn];
    for (std::size_t i = 0; i + 1 < unit.size(); ++i) unit[i].issue(1);
    return unit.back().run();
  }

  /// Gives updated arguments their first values again.
  void restore() {
    for (std::vector<Call>& unit : turns_) {
      for (std::size_t i = 0; i < unit.size(); ++i) {
        if (!pristine_[i].empty()) unit[i].restore(pristine_[i]);
      }
    }
  }

  void count_from_zero() { std::fill(issued_.begin(), issued_.end(), 0); }
  [[nodiscard]] bool every_copy_was_issued() const {
    return std::all_of(issued_.begin(), issued_.end(), [](int64_t count) { return count > 0; });
  }

  [[nodiscard]] const std::vector<Call>& first_unit() const { return turns_.front(); }

 private:
  std::vector<std::vector<Call>> turns_;
  std::vector<std::vector<at::Tensor>> pristine_;
  std::vector<int64_t> issued_;
  bool updates_ = false;
};

/// So many units, queued by `launch`.
struct Window {
  std::function<void()> launch;
  int64_t units;
};

/// Two windows whose difference is the time of units.
struct Windows {
  Window few;
  Window many;
  std::string route;
};

/// What a unit was found to do before it is timed.
struct Pace {
  double device_ns;  ///< of one unit, gaps included
  double host_ns;    ///< of issuing one unit
  int64_t queue;     ///< units that may be queued together
  bool waits;        ///< the operator waits for the device itself
};

struct Floors {
  double graph_ns = 0;
  double stream_ns = 0;
  double latency_ns = 0;
};

/// The values of tensors, on the CPU, up to kComparedBytes of each.
void append_values(const c10::IValue& value, std::vector<at::Tensor>& values) {
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) append_values(element, values);
  }
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor flat = value.toTensor().contiguous().view({-1});
  const auto item = static_cast<int64_t>(flat.element_size());
  values.push_back(flat.slice(0, 0, std::min(flat.numel(), kComparedBytes / item)).cpu());
}

std::vector<at::Tensor> values_of(const torch::jit::Stack& outputs, const Rotation& rotation) {
  std::vector<at::Tensor> values;
  for (const c10::IValue& output : outputs) append_values(output, values);
  for (const Call& call : rotation.first_unit()) {
    for (const at::Tensor& updated : call.updated_values()) append_values(updated, values);
  }
  return values;
}

bool same_values(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    if (x.sizes() != y.sizes() || x.dtype() != y.dtype()) return false;
    if (x.view(at::kByte).equal(y.view(at::kByte))) return true;
    if (!x.is_floating_point()) return false;
    return at::allclose(x.to(at::kFloat), y.to(at::kFloat), 1e-2, 1e-3, /*equal_nan=*/true);
  });
}

bool draws_numbers(const std::vector<Call>& unit) {
  return std::any_of(unit.begin(), unit.end(), [](const Call& call) {
    return call.op().hasTag(at::Tag::nondeterministic_seeded);
  });
}

}  // namespace

struct DeviceTimer::State {
  explicit State(c10::Device on)
      : api(device_api(on.type())),
        impl(on.type()),
        device(on.has_index() ? on : impl.getDevice()),
        stream(impl.getStreamFromGlobalPool(device)),
        start(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        probe(api.make_probe(device)),
        cache(api.cache_bytes(device)) {}

  const DeviceApi& api;
  c10::impl::VirtualGuardImpl impl;
  c10::Device device;
  c10::Stream stream;
  c10::Event start;
  c10::Event end;
  std::unique_ptr<DeviceProbe> probe;
  int64_t cache;
  at::Tensor flush;  // made once, when first needed
  std::optional<Floors> floors;
  double steady_clock = 0;
  int64_t throttled = 0;

  [[nodiscard]] int64_t now() const { return api.host_now_ns(); }
  void synchronize() const { impl.synchronizeStream(stream); }

  /// Holds the stream for its lifetime; the way out always opens it.
  class ClosedGate {
   public:
    ClosedGate(State& state, bool close) : probe_(close ? state.probe.get() : nullptr) {
      if (probe_ != nullptr) probe_->close_gate(state.stream, kGateLimitNs);
    }
    ~ClosedGate() {
      if (probe_ != nullptr) probe_->open_gate();
    }
    ClosedGate(const ClosedGate&) = delete;
    ClosedGate& operator=(const ClosedGate&) = delete;

   private:
    DeviceProbe* probe_;
  };

  /// Leaves an idle stream behind, whatever happened; an error of the device is reported already.
  class IdleAfterwards {
   public:
    explicit IdleAfterwards(const State& state) : state_(state) {}
    ~IdleAfterwards() {
      state_.probe->open_gate();
      try {
        state_.synchronize();
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      }
    }
    IdleAfterwards(const IdleAfterwards&) = delete;
    IdleAfterwards& operator=(const IdleAfterwards&) = delete;

   private:
    const State& state_;
  };

  /// Device time of what `launch` queues; nothing if it could not be queued while the gate held.
  std::optional<double> elapsed_ns(const std::function<void()>& launch, bool gated) {
    {
      const ClosedGate gate(*this, gated);
      start.record(stream);
      launch();
      end.record(stream);
    }
    end.synchronize();
    if (gated && probe->gate_timed_out()) return std::nullopt;
    return start.elapsedTime(end) * 1e6;
  }

  double read_clock() {
    probe->queue_clock(stream);
    synchronize();
    return probe->clock();
  }

  /// Samples the difference of two windows until the plan is met.
  Samples sample(const Windows& windows,
                 const std::function<void()>& prepare,
                 const TimingPlan& plan,
                 double floor_ns,
                 bool gated) {
    const auto units = static_cast<double>(windows.many.units - windows.few.units);
    SampleSeries series(plan);
    prepare();
    windows.few.launch();  // the first launch uploads a graph
    prepare();
    windows.many.launch();
    synchronize();
    const int64_t begin = now();
    do {
      prepare();
      const auto few = elapsed_ns(windows.few.launch, gated);
      prepare();
      if (plan.on_before_sample) plan.on_before_sample();
      const auto many = elapsed_ns(windows.many.launch, gated);
      if (plan.on_after_sample) plan.on_after_sample();
      if (!few || !many) {
        series.refuse();
      } else if (read_clock() < kSteady * steady_clock) {
        ++throttled;
        series.refuse();
      } else {
        series.add((*many - *few) / units);
      }
    } while (!series.finished(now() - begin));
    Samples samples = series.take(windows.many.units);
    samples.route = windows.route;
    samples.floor_ns = floor_ns;
    return samples;
  }

  Windows on_stream(Rotation& rotation, int64_t few, int64_t many) {
    const auto window = [&](int64_t n) {
      return Window{[&rotation, n] { rotation.issue(0, n); }, n};
    };
    return {window(few), window(many), "stream"};
  }

  std::shared_ptr<DeviceGraph> capture(const std::function<void()>& issue) const {
    return api.capture(stream, issue);
  }

  static Window launching(std::vector<std::shared_ptr<DeviceGraph>> graphs, int64_t units) {
    return {[graphs = std::move(graphs)] {
              for (const auto& graph : graphs) graph->launch();
            },
            units};
  }

  // ---- before timing ----

  void warm_up(Rotation& rotation, int64_t warmup_ns) {
    const int64_t begin = now();
    int64_t batch = 1;
    int64_t made = 0;
    while (made < 2 || now() - begin < warmup_ns) {  // one call may only compile or allocate
      rotation.restore();
      rotation.issue(0, batch);
      synchronize();
      made += batch;
      batch = std::min(batch * 2, kUpdatingCalls);
    }
    std::vector<double> clocks;
    for (int i = 0; i < 5; ++i) clocks.push_back(read_clock());
    std::nth_element(clocks.begin(), clocks.begin() + 2, clocks.end());
    steady_clock = clocks[2];
  }

  Pace find_pace(Rotation& rotation) {
    const int64_t most = kMaxQueued / rotation.calls();
    Pace pace{0, 0, std::max<int64_t>(1, most), false};
    for (int64_t n : {std::min<int64_t>(8, pace.queue), int64_t{1}}) {
      rotation.restore();
      int64_t host = 0;
      const auto launch = [&] {
        const int64_t begin = now();
        rotation.issue(0, n);
        host = now() - begin;
      };
      if (const auto ns = elapsed_ns(launch, true)) {
        pace.device_ns = std::max(1.0, *ns / static_cast<double>(n));
        pace.host_ns = static_cast<double>(host) / static_cast<double>(n);
        break;
      }
      pace.waits = n == 1;
    }
    if (pace.waits) {
      pace.device_ns = pace.host_ns = std::max(1.0, latency_sample(rotation));
      pace.queue = 2;
      return pace;
    }
    if (rotation.updates()) pace.queue = std::min(pace.queue, kUpdatingCalls);
    const auto wanted = static_cast<int64_t>(std::ceil(kWindowNs / pace.device_ns));
    pace.queue = std::clamp<int64_t>(wanted, std::min<int64_t>(8, pace.queue), pace.queue);
    while (pace.queue > 1) {  // a unit of many kernels fills the queue early
      rotation.restore();
      if (elapsed_ns([&] { rotation.issue(0, pace.queue); }, true)) break;
      pace.queue /= 2;
    }
    return pace;
  }

  void calibrate() {
    if (floors) return;
    floors.emplace();
    TimingPlan plan;
    plan.limit_ns = 20'000'000;
    const auto nothing = [] {};
    const auto queue = [this](int64_t n) {
      return [this, n] {
        for (int64_t i = 0; i < n; ++i) probe->queue_empty(stream);
      };
    };
    const auto median = [](Samples samples) {
      if (samples.ns.empty()) return 0.0;
      std::sort(samples.ns.begin(), samples.ns.end());
      return samples.ns[samples.ns.size() / 2];
    };
    const Windows graph{
        launching({capture(queue(256))}, 256), launching({capture(queue(1024))}, 1024), "graph"};
    floors->graph_ns = median(sample(graph, nothing, plan, 0, true));
    const Windows queued{{queue(64), 64}, {queue(256), 256}, "stream"};
    floors->stream_ns = median(sample(queued, nothing, plan, 0, true));
    Samples latencies;
    for (int i = 0; i < 101; ++i) {
      const int64_t begin = now();
      probe->queue_empty(stream);
      synchronize();
      latencies.ns.push_back(static_cast<double>(now() - begin));
    }
    floors->latency_ns = median(std::move(latencies));
  }

  [[nodiscard]] double floor_of(const std::string& route) const {
    return route == "graph" ? floors->graph_ns : floors->stream_ns;
  }

  // ---- the four numbers ----

  Samples host(Rotation& rotation, const Pace& pace, const TimingPlan& plan) {
    const auto wanted = static_cast<int64_t>(kHostBatchNs / std::max(1.0, pace.host_ns));
    const int64_t n = pace.waits ? 1 : std::clamp<int64_t>(wanted, 1, pace.queue);
    SampleSeries series(plan);
    const int64_t begin = now();
    do {
      rotation.restore();
      synchronize();
      int64_t issued = 0;
      {
        const ClosedGate gate(*this, !pace.waits);
        const int64_t from = now();
        rotation.issue(0, n);
        issued = now() - from;
      }
      synchronize();
      if (!pace.waits && probe->gate_timed_out()) {
        series.refuse();
      } else {
        series.add(static_cast<double>(issued) / static_cast<double>(n));
      }
    } while (!series.finished(now() - begin));
    return series.take(n);
  }

  double latency_sample(Rotation& rotation) {
    rotation.restore();
    synchronize();
    const int64_t begin = now();
    rotation.issue(0, 1);
    synchronize();
    return static_cast<double>(now() - begin);
  }

  Samples latency(Rotation& rotation, const TimingPlan& plan) {
    SampleSeries series(plan);
    const int64_t begin = now();
    do {
      series.add(latency_sample(rotation));
    } while (!series.finished(now() - begin));
    Samples samples = series.take(1);
    samples.route = "stream";
    samples.floor_ns = floors->latency_ns;
    return samples;
  }

  /// Windows of graphs over one unit, or nothing with the reason in `notes`.
  std::optional<Windows> captured(Rotation& rotation,
                                  const Pace& pace,
                                  std::vector<std::string>& notes) {
    const int64_t most = rotation.updates()
                             ? kUpdatingCalls
                             : std::max<int64_t>(2, Graph::kMaxCalls / rotation.calls());
    const auto wanted = static_cast<int64_t>(std::ceil(kWindowNs / pace.device_ns));
    const int64_t many = std::clamp<int64_t>(wanted, 2, most);
    const int64_t few = std::max<int64_t>(1, many / 4);
    std::shared_ptr<DeviceGraph> small;
    std::shared_ptr<DeviceGraph> large;
    torch::jit::Stack outputs;
    try {
      small = capture([&] { outputs = rotation.issue_and_keep(0, few); });
      large = capture([&] { rotation.issue(0, many); });
    } catch (const std::exception& error) {
      notes.push_back(std::string("it cannot be captured in a graph (") + first_line(error.what()) +
                      "): device times come from the stream route");
      return std::nullopt;
    }
    if (!draws_numbers(rotation.first_unit()) &&
        !agrees_with_eager(rotation, *small, outputs, few)) {
      notes.emplace_back(
          "a graph of it computes other values than the call itself: device times come from the "
          "stream route");
      return std::nullopt;
    }
    return Windows{launching({small}, few), launching({large}, many), "graph"};
  }

  /// Runs the units eagerly twice and from the graph; where the eager runs differ nothing is said.
  bool agrees_with_eager(Rotation& rotation,
                         DeviceGraph& graph,
                         const torch::jit::Stack& outputs,
                         int64_t units) {
    const auto eager = [&] {
      rotation.restore();
      const torch::jit::Stack results = rotation.issue_and_keep(0, units);
      synchronize();
      return values_of(results, rotation);
    };
    const auto expected = eager();
    if (!same_values(expected, eager())) return true;
    rotation.restore();
    graph.launch();
    synchronize();
    return same_values(expected, values_of(outputs, rotation));
  }

  /// Cold times by copies that take turns.
  Samples rotated(Rotation& rotation,
                  const Pace& pace,
                  bool in_graph,
                  const TimingPlan& plan,
                  std::vector<std::string>& notes) {
    const int64_t copies = rotation.size();
    const int64_t most = in_graph ? Graph::kMaxCalls / rotation.calls() : pace.queue;
    const auto wanted =
        static_cast<int64_t>(std::ceil(kWindowNs / pace.device_ns / static_cast<double>(copies)));
    const int64_t turns =
        rotation.updates() ? std::min(most / copies, kUpdatingCalls) : most / copies;
    Windows windows;
    rotation.count_from_zero();
    if (2 * copies <= most) {
      // Every copy is as long ago as all others: windows hold whole turns.
      const int64_t many = std::clamp<int64_t>(wanted, 2, turns) * copies;
      const int64_t few = std::max<int64_t>(1, many / copies / 4) * copies;
      windows = in_graph ? Windows{launching({capture([&] { rotation.issue(0, few); })}, few),
                                   launching({capture([&] { rotation.issue(0, many); })}, many),
                                   "graph"}
                         : on_stream(rotation, few, many);
    } else {
      const int64_t graphs = ceil_div(copies, most);
      const int64_t share = ceil_div(copies, graphs);
      std::vector<std::shared_ptr<DeviceGraph>> turn;
      for (int64_t first = 0; first < copies; first += share) {
        const int64_t n = std::min(share, copies - first);
        turn.push_back(capture([&] { rotation.issue(first, n); }));
      }
      auto twice = turn;
      twice.insert(twice.end(), turn.begin(), turn.end());
      windows = {launching(turn, copies), launching(twice, 2 * copies), "graph"};
      notes.push_back("cold: " + std::to_string(copies) + " copies in " +
                      std::to_string(turn.size()) + " graphs, launched in turn");
    }
    if (!in_graph) rotation.issue(0, copies);
    TORCH_CHECK(rotation.every_copy_was_issued(),
                "a cold window has to touch each of its ",
                copies,
                " copies, and left some out");
    const bool cool = rotation.updates();  // restoring has just touched what is to be cold
    const auto prepare = [&] {
      rotation.restore();
      if (cool) flush_buffer().zero_();
    };
    return sample(windows, prepare, plan, floor_of(windows.route), true);
  }

  const at::Tensor& flush_buffer() {
    if (!flush.defined()) {
      flush = at::empty({2 * cache}, at::TensorOptions().dtype(at::kByte).device(device));
    }
    return flush;
  }

  /// Cold times by filling a buffer of twice the cache before each unit, less the filling alone.
  Samples flushed(Rotation& rotation, const Pace& pace, bool in_graph, const TimingPlan& plan) {
    const at::Tensor& buffer = flush_buffer();
    const int64_t units =
        std::clamp<int64_t>(kFlushedUnits, 1, std::max<int64_t>(1, pace.queue / 2));
    const auto flush_only = [&, buffer] {
      for (int64_t i = 0; i < units; ++i) buffer.zero_();
    };
    const auto flush_and_call = [&, buffer] {
      for (int64_t i = 0; i < units; ++i) {
        buffer.zero_();
        rotation.issue(i, 1);
      }
    };
    const Windows windows = in_graph ? Windows{launching({capture(flush_only)}, 0),
                                               launching({capture(flush_and_call)}, units),
                                               "graph"}
                                     : Windows{{flush_only, 0}, {flush_and_call, units}, "stream"};
    const auto prepare = [&] { rotation.restore(); };
    return sample(windows, prepare, plan, floor_of(windows.route), !pace.waits);
  }

  std::optional<Samples> cold(std::vector<Call>& unit,
                              Rotation& warm,
                              const Pace& pace,
                              bool in_graph,
                              Cold which,
                              const TimingPlan& plan,
                              std::vector<std::string>& notes) {
    const Copied what = which == Cold::kWeights ? Copied::kWeights : Copied::kAll;
    int64_t bytes = 0;
    for (const Call& call : unit) bytes += call.copied_bytes(what);
    if (bytes == 0) {
      notes.emplace_back("cold: no argument to be taken out of cache");
      return std::nullopt;
    }
    const int64_t copies = std::max<int64_t>(1, ceil_div(2 * cache, bytes));
    const int64_t most = in_graph ? kMaxRotated : pace.queue / 2;
    if (copies * warm.calls() <= most && !pace.waits) {
      warm.restore();  // copies start from the first values
      if (auto rotation = copied(unit, copies, what)) {
        return rotated(*rotation, pace, in_graph, plan, notes);
      }
    }
    notes.push_back("cold: " + std::to_string(copies) +
                    " copies were too many, the cache was flushed before each call instead" +
                    (which == Cold::kWeights ? ", for all arguments" : ""));
    return flushed(warm, pace, in_graph, plan);
  }

  /// Copies of a unit; nothing where memory forbids them.
  static std::optional<Rotation> copied(const std::vector<Call>& unit, int64_t count, Copied what) {
    try {
      std::vector<std::vector<Call>> turns(static_cast<std::size_t>(count));
      for (const Call& call : unit) {
        std::vector<Call> of_call = call.copies(count, at::Tensor(), what);
        for (std::size_t i = 0; i < of_call.size(); ++i) turns[i].push_back(std::move(of_call[i]));
      }
      return Rotation(std::move(turns));
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
  }
};

DeviceTimer::DeviceTimer(c10::Device device) : state_(std::make_unique<State>(device)) {}
DeviceTimer::~DeviceTimer() = default;
DeviceTimer::DeviceTimer(DeviceTimer&&) noexcept = default;
DeviceTimer& DeviceTimer::operator=(DeviceTimer&&) noexcept = default;

int64_t DeviceTimer::cache_bytes() const noexcept { return state_->cache; }

DeviceTimes DeviceTimer::time(std::vector<Call>& unit, const TimingPlan& plan, Cold cold) {
  TORCH_CHECK_VALUE(!unit.empty() && static_cast<int64_t>(unit.size()) <= Graph::kMaxCalls / 2,
                    "a unit to be timed has 1 to ",
                    Graph::kMaxCalls / 2,
                    " calls, got ",
                    unit.size());
  State& state = *state_;
  if (std::any_of(unit.begin(), unit.end(), [](const Call& c) { return c.changes_metadata(); })) {
    TORCH_CHECK_VALUE(unit.size() == 1, "an operator that changes sizes is timed by itself");
    DeviceTimes times;
    times.host = time_call(unit.front(), plan);
    times.notes.emplace_back("it changes sizes or strides only: no device time was taken");
    return times;
  }
  const GradModeGuard mode(plan.mode);
  state.impl.synchronizeDevice(state.device.index());  // inputs come from another stream
  const c10::StreamGuard current(state.stream);
  const State::IdleAfterwards idle(state);
  Rotation rotation({unit});
  state.warm_up(rotation, plan.warmup_ns);
  state.calibrate();
  const Pace pace = state.find_pace(rotation);

  const auto part = [&](double share) {
    TimingPlan some = plan;
    some.limit_ns = static_cast<int64_t>(static_cast<double>(plan.limit_ns) * share);
    return some;
  };
  DeviceTimes times;
  state.throttled = 0;
  if (pace.waits) {
    times.notes.emplace_back(
        "the operator waits for the device itself: its device times hold the host's");
  }
  times.host = state.host(rotation, pace, part(0.15));
  auto windows = pace.waits ? std::nullopt : state.captured(rotation, pace, times.notes);
  const bool in_graph = windows.has_value();
  if (!windows) {
    const int64_t few = std::max<int64_t>(1, pace.queue / 4);
    windows = state.on_stream(rotation, few, std::max(pace.queue, few + 1));
  }
  const auto restore = [&] { rotation.restore(); };
  times.hot =
      state.sample(*windows, restore, part(0.4), state.floor_of(windows->route), !pace.waits);
  if (times.hot->ns.empty()) {
    times.hot.reset();
    times.notes.emplace_back("no sample of its device time was positive: it queues no work");
  } else if (cold != Cold::kOff) {
    times.cold = state.cold(unit, rotation, pace, in_graph, cold, part(0.3), times.notes);
    if (times.cold && times.cold->ns.empty()) times.cold.reset();
  }
  times.latency = state.latency(rotation, part(0.15));
  restore();
  if (state.throttled > 0) {
    times.notes.push_back(std::to_string(state.throttled) +
                          " samples were discarded: the device ran under 75 % of its steady clock");
  }
  return times;
}

Samples time_warm(Call& call, c10::Device device, const TimingPlan& plan) {
  if (device.is_cpu()) return time_call(call, plan);
  std::vector<Call> unit{call};
  DeviceTimes times = DeviceTimer(device).time(unit, plan, Cold::kOff);
  return times.hot ? std::move(*times.hot) : std::move(times.host);
}

}  // namespace opreplay
