// SPDX-License-Identifier: MIT
//
// Replays every call of a bundle on the CPU and prints the median time of each.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "opreplay/bundle.h"
#include "opreplay/timing.h"

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: embed BUNDLE\n");
    return 2;
  }
  try {
    for (const opreplay::BundledCall& described : opreplay::load_bundle(words[1])) {
      opreplay::Call call = described.prepare(at::kCPU);
      opreplay::TimingPlan plan;
      plan.mode = described.mode;
      const opreplay::Samples samples = opreplay::time_call(call, plan);
      std::printf("%s %s %.3f\n",
                  described.signature.c_str(),
                  described.op.c_str(),
                  median(samples.ns) / 1000);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "embed: %s\n", error.what_without_backtrace());
    return 1;
  }
}
