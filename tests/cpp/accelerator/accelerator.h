// SPDX-License-Identifier: MIT
//
// An accelerator that exists only in tests: torch's PrivateUse1 device with memory of the host,
// streams, events and graphs on a clock that moves only when something is said to take time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace accelerator {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

/// What things take [nanoseconds] and hold [bytes]; a test changes what it is about.
struct Settings {
  int64_t launch_host = 1000;        ///< host, to queue a kernel
  int64_t graph_launch_host = 7000;  ///< host, to launch a graph
  int64_t graph_start = 2500;        ///< device, before the first node of a graph
  int64_t event = 600;               ///< device, to record an event
  int64_t record_host = 400;         ///< host, to record an event
  int64_t synchronize_host = 900;    ///< host, to come back from waiting
  int64_t empty_kernel = 250;        ///< device
  int64_t copy = 800;                ///< device, to copy or fill
  int64_t miss = 2000;               ///< device, for each input that is out of cache
  int64_t cache = 1 << 20;           ///< what the cache holds
  int64_t reported_cache = 1 << 20;  ///< what the back end says that it holds
  int64_t memory = int64_t{1} << 40;
  std::size_t queue = 1000;  ///< launches, before the host blocks
  std::function<double(int64_t)> clock = [](int64_t) { return 1.0; };  ///< of the n-th reading
  bool gate_holds = true;
  bool copies_arrive = true;
};

/// Work in the queue of a stream; returns what it took.
using Work = std::function<int64_t(int64_t start)>;

struct Stream {
  int64_t free_at = 0;
  bool gated = false;
  int64_t deadline = 0;
  std::deque<std::pair<Work, int64_t>> pending;
};

struct Simulator {
  Settings settings;
  int64_t host_now = 0;
  std::map<int64_t, Stream> streams;
  int64_t current = 0;  ///< the current stream
  std::vector<Work>* recording = nullptr;
  bool replaying = false;
  bool timed_out = false;
  int64_t allocated = 0;
  int64_t clock_readings = 0;
  std::list<std::pair<const void*, int64_t>> cached;
  std::vector<std::string> log;        ///< what the host asked for, in order
  std::vector<const void*> touched;    ///< inputs that kernels of work() read, in order
  std::vector<int64_t> graph_sizes;    ///< nodes of each captured graph
  std::vector<int64_t> large_buffers;  ///< allocations of more than the cache
  std::size_t longest_queue = 0;
  float largest_value = 0;  ///< that add_one_() has read

  void queue(int64_t stream, Work work);
  void close_gate(int64_t stream, int64_t limit_ns);
  void open_gate();
  void synchronize(int64_t stream);
  bool idle(int64_t stream);
  /// True if it was in the cache; it is afterwards.
  bool touch(const void* data, int64_t bytes);

 private:
  void run(Stream& stream, const Work& work, int64_t queued_at);
  void give_way(Stream& stream, int64_t at);
};

Simulator& simulator();

/// A new clock, an empty cache, the settings of the beginning.
void reset();

}  // namespace accelerator
