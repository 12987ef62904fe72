// SPDX-License-Identifier: MIT
//
// Graphs, gate and clock of CUDA and ROCm: the only host file that knows a vendor. torch's graphs
// keep their names under ROCm, and so does this file; only includes and calls of the runtime are
// renamed there.
#include "opreplay/graph.h"

#if defined(USE_ROCM)
#include <ATen/hip/HIPGraph.h>
#include <hip/hip_runtime.h>
#define OPREPLAY_RUNTIME(name) hip##name
#define OPREPLAY_L2_CACHE_SIZE hipDeviceAttributeL2CacheSize
#define OPREPLAY_MAPPED hipHostMallocMapped
#else
#include <ATen/cuda/CUDAGraph.h>
#include <cuda_runtime.h>
#define OPREPLAY_RUNTIME(name) cuda##name
#define OPREPLAY_L2_CACHE_SIZE cudaDevAttrL2CacheSize
#define OPREPLAY_MAPPED cudaHostAllocMapped
#endif
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/probe.h"

namespace opreplay {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::CUDA;  // torch's name for ROCm devices too

/// The words "CUDA error" tell whoever reads the message that the device may be of no more use.
void check(OPREPLAY_RUNTIME(Error_t) error, const char* call) {
  TORCH_CHECK(error == OPREPLAY_RUNTIME(Success),
              "CUDA error: ",
              OPREPLAY_RUNTIME(GetErrorString)(error),
              " (in ",
              call,
              ")");
}

/// torch 2.9 has no handle on its device-neutral streams.
template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, stream).stream();
  }
}

class CapturedGraph final : public DeviceGraph {
 public:
  explicit CapturedGraph(const std::function<void()>& issue) : graph_(/*keep_graph=*/true) {
    graph_.capture_begin();
    try {
      issue();
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graph_.capture_end();
    std::size_t nodes = 0;
    check(OPREPLAY_RUNTIME(GraphGetNodes)(graph_.raw_cuda_graph(), nullptr, &nodes),
          "GraphGetNodes");
    nodes_ = static_cast<int64_t>(nodes);
    graph_.instantiate();
  }

  void launch() override { graph_.replay(); }
  int64_t nodes() const override { return nodes_; }

 private:
  /// The capture is void already; what ending it says about that is of no use.
  void end_failed_capture() noexcept {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    }
    static_cast<void>(OPREPLAY_RUNTIME(GetLastError)());  // it would fail the next launch
  }

  at::cuda::CUDAGraph graph_;
  int64_t nodes_ = 0;
};

class RuntimeProbe final : public DeviceProbe {
 public:
  explicit RuntimeProbe(c10::Device device) {
    const c10::DeviceGuard guard(device);
    void* host = nullptr;
    check(OPREPLAY_RUNTIME(HostAlloc)(&host, sizeof(kernels::ProbeWords), OPREPLAY_MAPPED),
          "HostAlloc");
    words_ = new (host) kernels::ProbeWords{1, 0, 0, 0};
    void* seen = nullptr;
    const auto error = OPREPLAY_RUNTIME(HostGetDevicePointer)(&seen, host, 0);
    if (error != OPREPLAY_RUNTIME(Success)) static_cast<void>(OPREPLAY_RUNTIME(FreeHost)(host));
    check(error, "HostGetDevicePointer");
    on_device_ = static_cast<kernels::ProbeWords*>(seen);
  }
  ~RuntimeProbe() override {
    open_gate();
    static_cast<void>(OPREPLAY_RUNTIME(FreeHost)(words_));
  }
  RuntimeProbe(const RuntimeProbe&) = delete;
  RuntimeProbe& operator=(const RuntimeProbe&) = delete;

  void close_gate(const c10::Stream& stream, int64_t limit_ns) override {
    set(words_->timed_out, 0);
    set(words_->open, 0);
    kernels::gate_gpu(on_device_, limit_ns, handle_of(stream));
  }
  void open_gate() noexcept override { set(words_->open, 1); }
  bool gate_timed_out() const override {
    return __atomic_load_n(&words_->timed_out, __ATOMIC_ACQUIRE) != 0;
  }
  void queue_empty(const c10::Stream& stream) override { kernels::empty_gpu(handle_of(stream)); }
  void queue_clock(const c10::Stream& stream) override {
    kernels::clock_gpu(on_device_, handle_of(stream));
  }
  double clock() const override {
    return static_cast<double>(words_->cycles) /
           static_cast<double>(std::max<uint64_t>(1, words_->ticks));
  }

 private:
  static void set(uint32_t& word, uint32_t value) noexcept {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
  }

  kernels::ProbeWords* words_;      ///< in pinned memory of the host
  kernels::ProbeWords* on_device_;  ///< the same, as the device addresses it
};

/// Largest cache that the kernel driver of AMD lists, in bytes: the runtime does not name the
/// Infinity Cache. Those of other nodes can only make it larger, which costs time and no truth.
int64_t listed_cache_bytes() {
  const std::filesystem::path nodes = "/sys/class/kfd/kfd/topology/nodes";
  std::error_code missing;
  int64_t largest = 0;
  for (const auto& node : std::filesystem::directory_iterator(nodes, missing)) {
    for (const auto& cache : std::filesystem::directory_iterator(node.path() / "caches", missing)) {
      std::ifstream properties(cache.path() / "properties");
      std::string name;
      int64_t value = 0;
      while (properties >> name >> value) {
        if (name == "size") largest = std::max(largest, value * 1024);
      }
    }
  }
  return largest;
}

class RuntimeApi final : public DeviceApi {
 public:
  std::unique_ptr<DeviceGraph> capture(const c10::Stream&,
                                       const std::function<void()>& issue) const override {
    return std::make_unique<CapturedGraph>(issue);
  }
  std::unique_ptr<DeviceProbe> make_probe(c10::Device device) const override {
    return std::make_unique<RuntimeProbe>(device);
  }
  void* native_handle(const c10::Stream& stream) const override { return handle_of(stream); }
  int64_t cache_bytes(c10::Device device) const override {
    int level_2 = 0;
    check(OPREPLAY_RUNTIME(DeviceGetAttribute)(&level_2, OPREPLAY_L2_CACHE_SIZE, device.index()),
          "DeviceGetAttribute(L2CacheSize)");
    return std::max<int64_t>(level_2, listed_cache_bytes());
  }
};

const RuntimeApi api;

[[maybe_unused]] const bool registered = (register_device_api(kType, api), true);

}  // namespace
}  // namespace opreplay
