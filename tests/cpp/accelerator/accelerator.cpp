// SPDX-License-Identifier: MIT
#include "accelerator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "opreplay/graph.h"

namespace accelerator {

Simulator& simulator() {
  static Simulator instance;
  return instance;
}

void reset() {
  const int64_t allocated = simulator().allocated;
  simulator() = Simulator();
  simulator().allocated = allocated;
}

void Simulator::run(Stream& stream, const Work& work, int64_t queued_at) {
  const int64_t start = std::max(stream.free_at, queued_at);
  stream.free_at = start + work(start);
}

void Simulator::give_way(Stream& stream, int64_t at) {
  stream.free_at = std::max(stream.free_at, at);
  stream.gated = false;
  for (const auto& [work, queued_at] : std::exchange(stream.pending, {})) {
    run(stream, work, queued_at);
  }
}

void Simulator::queue(int64_t id, Work work) {
  if (recording != nullptr) {
    recording->push_back(std::move(work));
    return;
  }
  Stream& stream = streams[id];
  if (!stream.gated) return run(stream, work, host_now);
  stream.pending.emplace_back(std::move(work), host_now);
  longest_queue = std::max(longest_queue, stream.pending.size());
  if (stream.pending.size() >= settings.queue) synchronize(id);  // as a full queue blocks the host
}

void Simulator::close_gate(int64_t id, int64_t limit_ns) {
  host_now += settings.launch_host;
  timed_out = false;
  streams[id].gated = settings.gate_holds;
  streams[id].deadline = host_now + limit_ns;
}

void Simulator::open_gate() {
  for (auto& [id, stream] : streams) {
    if (stream.gated) give_way(stream, host_now);
  }
}

void Simulator::synchronize(int64_t id) {
  Stream& stream = streams[id];
  if (stream.gated) {  // only the gate's own limit ends this
    timed_out = true;
    give_way(stream, stream.deadline);
  }
  host_now = std::max(host_now, stream.free_at) + settings.synchronize_host;
}

bool Simulator::idle(int64_t id) {
  const Stream& stream = streams[id];
  return !stream.gated && stream.free_at <= host_now;
}

bool Simulator::touch(const void* data, int64_t bytes) {
  const auto found =
      std::find_if(cached.begin(), cached.end(), [&](const auto& e) { return e.first == data; });
  const bool hit = found != cached.end();
  if (hit) cached.erase(found);
  cached.emplace_front(data, bytes);
  int64_t used = 0;
  auto last = cached.begin();
  while (last != cached.end() && (used += last->second) <= settings.cache) ++last;
  cached.erase(last, cached.end());
  return hit;
}

namespace {

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Simulator& sim = simulator();
    const auto size = static_cast<int64_t>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError,
                     sim.allocated + size <= sim.settings.memory,
                     "the test accelerator is out of memory");
    if (size > sim.settings.cache) sim.large_buffers.push_back(size);
    sim.allocated += size;
    auto* block = static_cast<std::size_t*>(std::malloc(bytes + 64));
    block[0] = bytes;
    return {block + 8, block, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* block) {
    simulator().allocated -= static_cast<int64_t>(static_cast<std::size_t*>(block)[0]);
    std::free(block);
  }
};

Memory& memory() {
  static Memory instance;
  return instance;
}

struct EventState {
  int64_t time = 0;
  bool done = false;
  int64_t stream = 0;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(simulator().current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(1); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(simulator().current, next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream& on) const override {
    simulator().log.emplace_back("synchronize");
    simulator().synchronize(on.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    for (auto& [id, state] : simulator().streams) simulator().synchronize(id);
  }
  void record(void** event,
              const c10::Stream& on,
              c10::DeviceIndex,
              c10::EventFlag) const override {
    Simulator& sim = simulator();
    if (*event == nullptr) *event = new EventState();
    auto* state = static_cast<EventState*>(*event);
    state->done = false;
    state->stream = on.id();
    sim.log.emplace_back(sim.idle(on.id()) ? "record on an idle stream" : "record");
    sim.host_now += sim.settings.record_host;
    sim.queue(on.id(), [state](int64_t start) {
      state->time = start;
      state->done = true;
      return simulator().settings.event;
    });
  }
  bool queryEvent(void* event) const override { return static_cast<EventState*>(event)->done; }
  void synchronizeEvent(void* event) const override {
    simulator().log.emplace_back("wait");
    simulator().synchronize(static_cast<EventState*>(event)->stream);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    const int64_t ns = static_cast<EventState*>(end)->time - static_cast<EventState*>(begin)->time;
    return static_cast<double>(ns) / 1e6;
  }

 private:
  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
};

class RecordedWork final : public opreplay::DeviceGraph {
 public:
  explicit RecordedWork(std::vector<Work> nodes)
      : nodes_(std::make_shared<std::vector<Work>>(std::move(nodes))) {}
  void launch() override {
    Simulator& sim = simulator();
    sim.log.push_back("launch " + std::to_string(nodes_->size()));
    sim.host_now += sim.settings.graph_launch_host;
    sim.queue(sim.current, [nodes = nodes_](int64_t start) {
      Simulator& sim = simulator();
      sim.replaying = true;
      int64_t end = start + sim.settings.graph_start;
      for (const Work& work : *nodes) end += work(end);
      sim.replaying = false;
      return end - start;
    });
  }
  int64_t nodes() const override { return static_cast<int64_t>(nodes_->size()); }

 private:
  std::shared_ptr<std::vector<Work>> nodes_;
};

class Probe final : public opreplay::DeviceProbe {
 public:
  void close_gate(const c10::Stream& stream, int64_t limit_ns) override {
    simulator().log.emplace_back("close");
    simulator().close_gate(stream.id(), limit_ns);
  }
  void open_gate() noexcept override {
    simulator().log.emplace_back("open");
    simulator().open_gate();
  }
  bool gate_timed_out() const override { return simulator().timed_out; }
  void queue_empty(const c10::Stream& stream) override {
    Simulator& sim = simulator();
    sim.host_now += sim.settings.launch_host;
    sim.queue(stream.id(), [](int64_t) { return simulator().settings.empty_kernel; });
  }
  void queue_clock(const c10::Stream& stream) override {
    Simulator& sim = simulator();
    sim.host_now += sim.settings.launch_host;
    sim.queue(stream.id(), [](int64_t) { return int64_t{20000}; });
  }
  double clock() const override { return simulator().settings.clock(simulator().clock_readings++); }
};

class Api final : public opreplay::DeviceApi {
 public:
  std::unique_ptr<opreplay::DeviceGraph> capture(
      const c10::Stream&, const std::function<void()>& issue) const override {
    Simulator& sim = simulator();
    sim.log.emplace_back("capture");
    std::vector<Work> nodes;
    sim.recording = &nodes;
    try {
      issue();
    } catch (...) {
      sim.recording = nullptr;
      throw;
    }
    sim.recording = nullptr;
    sim.graph_sizes.push_back(static_cast<int64_t>(nodes.size()));
    return std::make_unique<RecordedWork>(std::move(nodes));
  }
  std::unique_ptr<opreplay::DeviceProbe> make_probe(c10::Device) const override {
    return std::make_unique<Probe>();
  }
  void* native_handle(const c10::Stream&) const override { return nullptr; }
  int64_t cache_bytes(c10::Device) const override { return simulator().settings.reported_cache; }
  int64_t host_now_ns() const override { return simulator().host_now; }
};

const Api api;

/// Queues work that reads or writes whole storages, as a copy engine does.
void queue_transfer(const char* name, Work work) {
  Simulator& sim = simulator();
  sim.log.emplace_back(name);
  sim.host_now += sim.settings.launch_host;
  sim.queue(sim.current, std::move(work));
}

at::Tensor make_empty(c10::SymIntArrayRef size,
                      std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout>,
                      std::optional<at::Device>,
                      std::optional<bool>,
                      std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size),
                                   &memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor make_empty_strided(c10::SymIntArrayRef size,
                              c10::SymIntArrayRef stride,
                              std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout>,
                              std::optional<at::Device>,
                              std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride),
                                           &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

/// Dense tensors of one dtype are all that the tests copy.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  TORCH_CHECK(from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous());
  const auto work = [from, to](int64_t) {
    Simulator& sim = simulator();
    for (const at::Tensor& tensor : {from, to}) {
      if (!tensor.is_cpu())
        sim.touch(tensor.storage().data(), static_cast<int64_t>(tensor.nbytes()));
    }
    if (sim.settings.copies_arrive || to.is_cpu()) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    }
    return sim.settings.copy;
  };
  queue_transfer("copy", work);
  if (to.is_cpu()) simulator().synchronize(simulator().current);
  return to;
}

at::Tensor& zero(at::Tensor& self) {
  queue_transfer("flush", [self](int64_t) {
    std::memset(self.mutable_data_ptr(), 0, self.nbytes());
    simulator().touch(self.storage().data(), static_cast<int64_t>(self.nbytes()));
    return simulator().settings.copy;
  });
  return self;
}

at::Tensor& set_storage(at::Tensor& self,
                        at::Storage storage,
                        c10::SymInt offset,
                        c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

at::Tensor as_strided(const at::Tensor& self,
                      c10::SymIntArrayRef size,
                      c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self,
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

struct Registration {
  Registration() {
    c10::SetAllocator(kType, &memory());
    opreplay::register_device_api(kType, api);
  }
};

const Registration registration;

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &make_empty);
  library.impl("empty_strided", &make_empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("zero_", &zero);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
}

}  // namespace accelerator
