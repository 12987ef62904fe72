// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/export.h"
#include "opreplay/timing.h"

namespace opreplay {

/// Which arguments a cold time finds out of cache.
enum class Cold {
  kOff,      ///< no cold time is taken
  kAll,      ///< all of them
  kWeights,  ///< those that are large and only read (see Call::copies); the others stay warm
};

/// What timing on a device found.
struct DeviceTimes {
  /// What issuing one unit costs the CPU while the device is busy.
  Samples host;
  /// Time of one unit on the device, back to back, inputs warm. Empty where no work is queued.
  std::optional<Samples> hot;
  /// The same with inputs out of cache.
  std::optional<Samples> cold;
  /// From an idle stream to completion, by the host's clock.
  std::optional<Samples> latency;
  /// What else a reader of the numbers must know, a sentence each.
  std::vector<std::string> notes;
};

/// Times units of calls on a device that has a DeviceApi. A unit is one call, or several that run
/// in their order. Keeps streams, events, the flush buffer and floors; one user at a time.
class OPREPLAY_API DeviceTimer {
 public:
  /// Throws c10::NotImplementedError if the device has no DeviceApi.
  explicit DeviceTimer(c10::Device device);
  ~DeviceTimer();
  DeviceTimer(DeviceTimer&&) noexcept;
  DeviceTimer& operator=(DeviceTimer&&) noexcept;
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  /// Takes all numbers. `plan.limit_ns` is the time for all samples together, `plan.warmup_ns`
  /// comes before it. Throws what an operator throws, with the device idle and nothing left in its
  /// queue.
  [[nodiscard]] DeviceTimes time(std::vector<Call>& unit, const TimingPlan& plan, Cold cold);

  /// Size of the largest cache [bytes].
  [[nodiscard]] int64_t cache_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Times a call with its inputs warm: from a loop on the CPU, back to back on a device.
[[nodiscard]] OPREPLAY_API Samples time_warm(Call& call,
                                             c10::Device device,
                                             const TimingPlan& plan);

}  // namespace opreplay
