// SPDX-License-Identifier: MIT
//
// The back ends that a process knows, and graphs as far as no vendor is named.
#include <c10/core/DeviceType.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "opreplay/graph.h"

namespace opreplay {

namespace {

using Registry = std::array<std::atomic<const DeviceApi*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

Registry& registry() {
  static Registry apis{};
  return apis;
}

/// A stream that can be captured: not the default one.
c10::Stream side_stream(c10::Device device) {
  static_cast<void>(device_api(device.type()));  // says what is missing, if anything is
  const c10::impl::VirtualGuardImpl impl(device.type());
  return impl.getStreamFromGlobalPool(device.has_index() ? device : impl.getDevice());
}

}  // namespace

int64_t DeviceApi::host_now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void register_device_api(c10::DeviceType type, const DeviceApi& api) {
  registry().at(static_cast<std::size_t>(type)).store(&api);
}

const DeviceApi* find_device_api(c10::DeviceType type) noexcept {
  return registry()[static_cast<std::size_t>(type)].load();
}

const DeviceApi& device_api(c10::DeviceType type) {
  const DeviceApi* api = find_device_api(type);
  TORCH_CHECK_NOT_IMPLEMENTED(api != nullptr,
                              "this build of opreplay has no GPU part for ",
                              c10::DeviceTypeName(type, true),
                              "; build it with OPREPLAY_GPU=CUDA or HIP against a torch for that "
                              "device");
  return *api;
}

Graph::Graph(std::vector<Call> calls, c10::Device device, int64_t times, GradMode mode)
    : calls_(std::move(calls)),
      stream_(side_stream(device)),
      count_(static_cast<int64_t>(calls_.size()) * times) {
  TORCH_CHECK_VALUE(count_ >= 1 && count_ <= kMaxCalls,
                    "a graph holds 1 to ",
                    kMaxCalls,
                    " calls, got ",
                    calls_.size(),
                    " calls ",
                    times,
                    " times; replay a smaller graph more often");
  const GradModeGuard guard(mode);
  const c10::impl::VirtualGuardImpl impl(device.type());
  impl.synchronizeDevice(stream_.device_index());  // the arguments may still be in the making
  const c10::StreamGuard current(stream_);
  for (Call& call : calls_) call.issue(1);  // a first call may compile, choose or allocate
  impl.synchronizeStream(stream_);
  graph_ = device_api(device.type()).capture(stream_, [&] {
    for (int64_t i = 0; i < count_; ++i) {
      Call& call = calls_[static_cast<std::size_t>(i) % calls_.size()];
      if (i + 1 < count_) {
        call.issue(1);
      } else {
        outputs_ = call.run();
      }
    }
  });
}

void Graph::replay(int64_t n) {
  const c10::StreamGuard current(stream_);
  for (int64_t i = 0; i < n; ++i) graph_->launch();
}

void Graph::launch(const c10::Stream& stream) {
  const c10::StreamGuard current(stream);
  graph_->launch();
}

void Graph::synchronize() const {
  c10::impl::VirtualGuardImpl(stream_.device_type()).synchronizeStream(stream_);
}

}  // namespace opreplay
