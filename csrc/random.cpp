// SPDX-License-Identifier: MIT
#include "opreplay/random.h"

#include <torch/library.h>

#include <limits>
#include <optional>

#include "kernels/fill_random.h"
#include "table_builders.h"

namespace opreplay {
namespace {

/// A dtype as its random format; a complex one counts as its two parts.
std::optional<kernels::RandomFormat> random_format(at::ScalarType type) {
  using kernels::RandomFormat;
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return RandomFormat::kFloat64;
    case at::kFloat:
    case at::kComplexFloat:
      return RandomFormat::kFloat32;
    case at::kHalf:
    case at::kComplexHalf:
      return RandomFormat::kFloat16;
    case at::kBFloat16:
      return RandomFormat::kBFloat16;
    case at::kFloat8_e4m3fn:
      return RandomFormat::kFloat8E4M3Fn;
    case at::kFloat8_e4m3fnuz:
      return RandomFormat::kFloat8E4M3FnUz;
    case at::kFloat8_e5m2:
      return RandomFormat::kFloat8E5M2;
    case at::kFloat8_e5m2fnuz:
      return RandomFormat::kFloat8E5M2FnUz;
    case at::kFloat8_e8m0fnu:
      return RandomFormat::kFloat8E8M0;
    case at::kFloat4_e2m1fn_x2:
      return RandomFormat::kFloat4E2M1Pair;
    default:
      return std::nullopt;
  }
}

/// Lowest and highest value of an integer dtype, as far as int64 can name them.
struct IntegerLimits {
  int64_t lowest;
  int64_t highest;
};

template <class T>
constexpr IntegerLimits limits_of() {
  constexpr auto int64_highest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  constexpr auto highest = static_cast<uint64_t>(std::numeric_limits<T>::max());
  return {static_cast<int64_t>(std::numeric_limits<T>::min()),
          static_cast<int64_t>(highest < int64_highest ? highest : int64_highest)};
}

std::optional<IntegerLimits> integer_limits(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return IntegerLimits{0, 1};
    case at::kByte:
      return limits_of<uint8_t>();
    case at::kChar:
      return limits_of<int8_t>();
    case at::kShort:
      return limits_of<int16_t>();
    case at::kUInt16:
      return limits_of<uint16_t>();
    case at::kInt:
      return limits_of<int32_t>();
    case at::kUInt32:
      return limits_of<uint32_t>();
    case at::kLong:
      return limits_of<int64_t>();
    case at::kUInt64:
      return limits_of<uint64_t>();
    default:
      return std::nullopt;
  }
}

void check_memory(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(),
                    "expected a tensor whose elements lie dense in memory, got sizes ",
                    tensor.sizes(),
                    " with strides ",
                    tensor.strides(),
                    "; fill a view of its whole storage instead");
  if (!tensor.is_meta()) check_table_device(tensor.device());
}

void fill_random_op(const at::Tensor& tensor, int64_t seed, int64_t stream) {
  fill_random(tensor, static_cast<uint64_t>(seed), static_cast<uint64_t>(stream));
}

void fill_random_integers_op(
    const at::Tensor& tensor, int64_t low, int64_t high, int64_t seed, int64_t stream) {
  fill_random_integers(
      tensor, low, high, static_cast<uint64_t>(seed), static_cast<uint64_t>(stream));
}

}  // namespace

void fill_random(const at::Tensor& tensor, uint64_t seed, uint64_t stream) {
  const auto format = random_format(tensor.scalar_type());
  TORCH_CHECK_TYPE(format.has_value(),
                   "fill_random fills floating point and complex tensors, got ",
                   tensor.scalar_type(),
                   "; use fill_random_integers for integers and bool");
  check_memory(tensor);
  if (tensor.is_meta() || tensor.numel() == 0) return;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (tensor.is_cpu()) {
    kernels::fill_random_cpu(tensor.data_ptr(), bytes, *format, seed, stream, at_parallel_for);
    return;
  }
  const c10::DeviceGuard guard(tensor.device());
  kernels::fill_random_gpu(
      tensor.data_ptr(), bytes, *format, seed, stream, current_stream(tensor.device()));
}

void fill_random_integers(
    const at::Tensor& tensor, int64_t low, int64_t high, uint64_t seed, uint64_t stream) {
  const auto limits = integer_limits(tensor.scalar_type());
  TORCH_CHECK_TYPE(limits.has_value(),
                   "fill_random_integers fills integer and bool tensors, got ",
                   tensor.scalar_type(),
                   "; use fill_random for floating point");
  TORCH_CHECK_VALUE(low < high, "expected low < high, got [", low, ", ", high, ")");
  TORCH_CHECK_VALUE(low >= limits->lowest && high - 1 <= limits->highest,
                    "expected a range within [",
                    limits->lowest,
                    ", ",
                    limits->highest,
                    "] of ",
                    tensor.scalar_type(),
                    ", got [",
                    low,
                    ", ",
                    high,
                    ")");
  check_memory(tensor);
  if (tensor.is_meta() || tensor.numel() == 0) return;
  void* const data = tensor.data_ptr();
  const int64_t count = tensor.numel();
  const auto width = static_cast<int>(tensor.element_size());
  const auto first = static_cast<uint64_t>(low);
  const uint64_t range = static_cast<uint64_t>(high) - first;
  if (tensor.is_cpu()) {
    kernels::fill_random_integers_cpu(
        data, count, width, first, range, seed, stream, at_parallel_for);
    return;
  }
  const c10::DeviceGuard guard(tensor.device());
  kernels::fill_random_integers_gpu(
      data, count, width, first, range, seed, stream, current_stream(tensor.device()));
}

}  // namespace opreplay

TORCH_LIBRARY_FRAGMENT(opreplay, m) {
  m.def("fill_random_(Tensor(a!) self, int seed, int stream=0) -> ()");
  m.def("fill_random_integers_(Tensor(a!) self, int low, int high, int seed, int stream=0) -> ()");
}

TORCH_LIBRARY_IMPL(opreplay, CompositeExplicitAutograd, m) {
  m.impl("fill_random_", opreplay::fill_random_op);
  m.impl("fill_random_integers_", opreplay::fill_random_integers_op);
}
