// SPDX-License-Identifier: MIT
//
// Counts instructions around exactly the timed region of one call, with the counters of Linux.
#include <c10/util/Exception.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "opreplay/bundle.h"
#include "opreplay/timing.h"

namespace {

/// A counter of instructions of this thread in user mode, stopped; -1 where that is not allowed.
int open_counter() {
  perf_event_attr wanted{};
  wanted.size = sizeof(wanted);
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
  wanted.disabled = 1;
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  return static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: counters BUNDLE\n");
    return 2;
  }
  const int counter = open_counter();
  if (counter < 0) {
    std::printf("no counters: perf_event_open: %s; see kernel.perf_event_paranoid\n",
                std::strerror(errno));
  }
  try {
    const opreplay::Bundle bundle = opreplay::load_bundle(words[1]);
    const opreplay::BundledCall& described = bundle.call(0);
    opreplay::Call call = described.prepare(at::kCPU);
    opreplay::TimingPlan plan;
    plan.mode = described.mode;
    if (counter >= 0) {
      plan.on_before_sample = [&] { ioctl(counter, PERF_EVENT_IOC_ENABLE, 0); };
      plan.on_after_sample = [&] { ioctl(counter, PERF_EVENT_IOC_DISABLE, 0); };
    }
    const opreplay::Samples samples = opreplay::time_call(call, plan);
    const auto calls = static_cast<int64_t>(samples.ns.size()) * samples.batch;
    int64_t instructions = 0;
    if (counter >= 0 && read(counter, &instructions, sizeof(instructions)) > 0) {
      std::printf("%s: %lld instructions a call\n",
                  described.op.c_str(),
                  static_cast<long long>(instructions / calls));
    } else {
      std::printf("%s: %lld calls timed\n", described.op.c_str(), static_cast<long long>(calls));
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "counters: %s\n", error.what_without_backtrace());
    return 1;
  }
}
