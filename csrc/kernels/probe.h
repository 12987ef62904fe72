// SPDX-License-Identifier: MIT
//
// The kernels that timing needs on a device. They have no CPU twin: on a CPU there is no queue to
// hold up, and the clocks are read directly.
#pragma once

#include <cstdint>

namespace opreplay::kernels {

/// Words in host memory that the device sees, shared with the kernels below.
struct ProbeWords {
  uint32_t open;       ///< set by the host: the gate may end
  uint32_t timed_out;  ///< set by the gate: it ended by itself
  uint64_t cycles;     ///< of the cores, while the clock kernel ran
  uint64_t ticks;      ///< of the clock of fixed rate, in that time
};

/// Waits until `words->open` is set, at most for `limit_ns`.
void gate_gpu(ProbeWords* words, int64_t limit_ns, void* stream);

/// Does nothing.
void empty_gpu(void* stream);

/// Compares the two clocks over about 20 us.
void clock_gpu(ProbeWords* words, void* stream);

}  // namespace opreplay::kernels
