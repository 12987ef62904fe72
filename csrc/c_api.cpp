// SPDX-License-Identifier: MIT
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "opreplay/bundle.h"
#include "opreplay/device_timing.h"
#include "opreplay/graph.h"
#include "opreplay/opreplay.h"
#include "opreplay/timing.h"

struct opreplay_bundle {
  opreplay::Bundle bundle;
};

struct opreplay_call {
  opreplay::Call call;
  opreplay::GradMode mode;
  c10::Device device;
};

struct opreplay_graph {
  opreplay::Graph graph;
};

namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

opreplay_status failed(opreplay_status status, const char* text) {
  last_error() = text;
  return status;
}

/// Runs a body; what it throws becomes a status.
template <class Body>
opreplay_status guarded(const Body& body) noexcept {
  try {
    body();
    return OPREPLAY_OK;
  } catch (const c10::NotImplementedError& error) {
    return failed(OPREPLAY_UNSUPPORTED, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    return failed(OPREPLAY_OUT_OF_MEMORY, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return failed(OPREPLAY_INVALID, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return failed(OPREPLAY_INVALID, error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    return failed(OPREPLAY_INVALID, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(OPREPLAY_FAILED, error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    return failed(OPREPLAY_OUT_OF_MEMORY, error.what());
  } catch (const std::exception& error) {
    return failed(OPREPLAY_FAILED, error.what());
  } catch (...) {
    return failed(OPREPLAY_FAILED, "something that is no std::exception was thrown");
  }
}

opreplay::TimingPlan timing_plan(const opreplay_timing_plan& wanted, opreplay::GradMode mode) {
  opreplay::TimingPlan plan;
  plan.warmup_ns = wanted.warmup_ns;
  plan.limit_ns = wanted.limit_ns;
  plan.relative_error = wanted.relative_error;
  plan.min_samples = wanted.min_samples;
  plan.max_samples = wanted.max_samples;
  plan.batch_ns = wanted.batch_ns;
  plan.max_batch = wanted.max_batch;
  plan.mode = mode;
  if (wanted.on_before_sample != nullptr) {
    plan.on_before_sample = [wanted] { wanted.on_before_sample(wanted.context); };
  }
  if (wanted.on_after_sample != nullptr) {
    plan.on_after_sample = [wanted] { wanted.on_after_sample(wanted.context); };
  }
  return plan;
}

}  // namespace

const char* opreplay_last_error(void) { return last_error().c_str(); }

opreplay_status opreplay_load_library(const char* path) {
  return guarded([&] { opreplay::load_library(path); });
}

opreplay_status opreplay_bundle_load(const char* path, opreplay_bundle** bundle) {
  return guarded([&] { *bundle = new opreplay_bundle{opreplay::load_bundle(path)}; });
}

void opreplay_bundle_free(opreplay_bundle* bundle) { delete bundle; }

size_t opreplay_bundle_size(const opreplay_bundle* bundle) { return bundle->bundle.size(); }

opreplay_status opreplay_bundle_call(const opreplay_bundle* bundle,
                                     size_t index,
                                     opreplay_call_info* info) {
  return guarded([&] {
    const opreplay::BundledCall& call = bundle->bundle.call(index);
    *info = {call.op.c_str(),
             call.overload.c_str(),
             call.schema.c_str(),
             call.signature.c_str(),
             call.count,
             call.recorded_host_us,
             call.bytes()};
  });
}

opreplay_status opreplay_call_prepare(const opreplay_bundle* bundle,
                                      size_t index,
                                      const char* device,
                                      opreplay_call** call) {
  return guarded([&] {
    const opreplay::BundledCall& described = bundle->bundle.call(index);
    const c10::Device where{std::string(device)};
    *call = new opreplay_call{described.prepare(where), described.mode, where};
  });
}

void opreplay_call_free(opreplay_call* call) { delete call; }

opreplay_status opreplay_call_issue(opreplay_call* call, int64_t n) {
  return guarded([&] {
    const opreplay::GradModeGuard guard(call->mode);
    call->call.issue(n);
  });
}

opreplay_status opreplay_call_synchronize(opreplay_call* call) {
  return guarded([&] {
    if (call->device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl impl(call->device.type());
    impl.synchronizeDevice(call->device.has_index() ? call->device.index()
                                                    : impl.getDevice().index());
  });
}

opreplay_timing_plan opreplay_default_timing_plan(void) {
  const opreplay::TimingPlan plan;
  return {plan.warmup_ns,
          plan.limit_ns,
          plan.relative_error,
          plan.min_samples,
          plan.max_samples,
          plan.batch_ns,
          plan.max_batch,
          nullptr,
          nullptr,
          nullptr};
}

opreplay_status opreplay_call_time(opreplay_call* call,
                                   const opreplay_timing_plan* plan,
                                   opreplay_samples* samples) {
  return guarded([&] {
    const auto taken =
        opreplay::time_warm(call->call, call->device, timing_plan(*plan, call->mode));
    auto ns = std::make_unique<double[]>(taken.ns.size());
    std::copy(taken.ns.begin(), taken.ns.end(), ns.get());
    *samples = {ns.release(), taken.ns.size(), taken.batch, taken.discarded};
  });
}

void opreplay_samples_free(opreplay_samples* samples) {
  delete[] samples->ns;
  *samples = {};
}

opreplay_status opreplay_graph_capture(const opreplay_call* call,
                                       int64_t times,
                                       opreplay_graph** graph) {
  return guarded([&] {
    *graph = new opreplay_graph{opreplay::Graph({call->call}, call->device, times, call->mode)};
  });
}

void opreplay_graph_free(opreplay_graph* graph) { delete graph; }

opreplay_status opreplay_graph_replay(opreplay_graph* graph, int64_t n) {
  return guarded([&] { graph->graph.replay(n); });
}

opreplay_status opreplay_graph_synchronize(opreplay_graph* graph) {
  return guarded([&] { graph->graph.synchronize(); });
}
