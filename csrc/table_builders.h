// SPDX-License-Identifier: MIT
//
// What the table builders share: where they run, and the checks of their arguments.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>

#include "kernels/parallel.h"
#include "opreplay/graph.h"

namespace opreplay {

inline void at_parallel_for(int64_t count, int64_t grain, const RangeBody& body) {
  at::parallel_for(0, count, grain, body);
}

/// Tables are built on the CPU or by kernels; torch calls devices of CUDA and of HIP "cuda".
inline void check_table_device(at::Device device) {
  TORCH_CHECK_VALUE(
      device.is_cpu() || (device.is_cuda() && c10::impl::hasDeviceGuardImpl(device.type())),
      "tables are built on cpu, or on a CUDA or HIP device that this torch supports, got device ",
      device);
}

/// Handle of the stream that work on a device is queued on now.
inline void* current_stream(at::Device device) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return device_api(device.type()).native_handle(stream);
}

inline void check_at_least(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, "expected ", name, " >= ", least, ", got ", value);
}

inline void check_at_most(const char* name, int64_t value, int64_t most) {
  TORCH_CHECK_VALUE(value <= most, "expected ", name, " <= ", most, ", got ", value);
}

/// A buffer that a kernel writes: right dtype, right device, contiguous.
inline void check_buffer(const char* name,
                         const at::Tensor& tensor,
                         at::ScalarType dtype,
                         at::Device device) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype,
                   "expected ",
                   name,
                   " of dtype ",
                   dtype,
                   ", got ",
                   tensor.scalar_type());
  TORCH_CHECK_VALUE(
      tensor.device() == device, "expected ", name, " on ", device, ", got ", tensor.device());
  TORCH_CHECK_VALUE(tensor.is_contiguous(),
                    "expected ",
                    name,
                    " contiguous, got strides ",
                    tensor.strides(),
                    " for sizes ",
                    tensor.sizes());
}

}  // namespace opreplay
