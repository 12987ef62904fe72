// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/export.h"

namespace opreplay {

/// Work of a stream, recorded once, that one launch queues again.
class OPREPLAY_API DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues the recorded work on the stream that is current. Does not wait for it.
  virtual void launch() = 0;
  /// Kernels, copies and fills that were recorded.
  [[nodiscard]] virtual int64_t nodes() const = 0;
};

/// The kernels that timing itself needs on a device. One user at a time.
class OPREPLAY_API DeviceProbe {
 public:
  virtual ~DeviceProbe() = default;
  /// Queues a kernel that holds up all later work of the stream until the gate is opened, at most
  /// for `limit_ns` [nanoseconds].
  virtual void close_gate(const c10::Stream& stream, int64_t limit_ns) = 0;
  virtual void open_gate() noexcept = 0;
  /// True if the last gate gave way because its time was up. Ask when its stream is idle.
  [[nodiscard]] virtual bool gate_timed_out() const = 0;
  /// Queues a kernel that does nothing.
  virtual void queue_empty(const c10::Stream& stream) = 0;
  /// Queues a short kernel that compares the clock of the cores with a clock of fixed rate.
  virtual void queue_clock(const c10::Stream& stream) = 0;
  /// What the last clock kernel found, in a unit of its own. Ask when its stream is idle.
  [[nodiscard]] virtual double clock() const = 0;
};

/// What a back end can do that c10's device guards do not name.
class OPREPLAY_API DeviceApi {
 public:
  virtual ~DeviceApi() = default;
  /// Records what `issue` queues on `stream`, which is the current one and is not the default
  /// stream. Nothing runs. Throws what `issue` throws, with the capture ended.
  [[nodiscard]] virtual std::unique_ptr<DeviceGraph> capture(
      const c10::Stream& stream, const std::function<void()>& issue) const = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceProbe> make_probe(c10::Device device) const = 0;
  /// The vendor's own handle of a stream, as kernels are launched with.
  [[nodiscard]] virtual void* native_handle(const c10::Stream& stream) const = 0;
  /// Size of the largest cache between the device and its memory [bytes].
  [[nodiscard]] virtual int64_t cache_bytes(c10::Device device) const = 0;
  /// The clock that host times are read from [nanoseconds].
  [[nodiscard]] virtual int64_t host_now_ns() const;
};

/// Makes a back end known, which must live as long as the process; the last one of a type counts.
OPREPLAY_API void register_device_api(c10::DeviceType type, const DeviceApi& api);

/// The back end of a device type; null if there is none.
[[nodiscard]] OPREPLAY_API const DeviceApi* find_device_api(c10::DeviceType type) noexcept;

/// The same. Throws c10::NotImplementedError if there is none.
[[nodiscard]] OPREPLAY_API const DeviceApi& device_api(c10::DeviceType type);

/// Calls captured once, to be replayed any number of times on a stream of their own.
class OPREPLAY_API Graph {
 public:
  /// At most so many calls are in one graph: larger ones have ended drivers.
  static constexpr int64_t kMaxCalls = 1024;

  /// Calls each of `calls` once eagerly, then captures them in turn, `times` times over. Throws
  /// c10::ValueError where that is none or more than kMaxCalls, and what the capture throws.
  Graph(std::vector<Call> calls,
        c10::Device device,
        int64_t times = 1,
        GradMode mode = GradMode::kInference);

  /// Queues the graph n times. Does not wait for it.
  void replay(int64_t n = 1);

  /// Queues the graph once on a stream of the caller's. Does not wait for it.
  void launch(const c10::Stream& stream);

  /// Waits for all that replay() queued.
  void synchronize() const;

  /// Outputs of the last captured call: a replay writes them anew.
  [[nodiscard]] const torch::jit::Stack& outputs() const noexcept { return outputs_; }
  [[nodiscard]] int64_t calls() const noexcept { return count_; }
  [[nodiscard]] int64_t nodes() const { return graph_->nodes(); }

 private:
  std::vector<Call> calls_;
  c10::Stream stream_;
  int64_t count_;
  torch::jit::Stack outputs_;
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace opreplay
