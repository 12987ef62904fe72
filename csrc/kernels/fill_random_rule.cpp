// SPDX-License-Identifier: MIT
#include <bit>

#include "kernels/fill_random_entry.h"

namespace opreplay::kernels {
namespace {

constexpr NarrowFloat narrow_float(int significand_bits, int exponent_bias) {
  const int scale_exponent = exponent_bias - 127 - (significand_bits - 1);
  return {32 - significand_bits,
          24 - significand_bits,
          std::bit_cast<float>(static_cast<uint32_t>(scale_exponent + 127) << 23)};
}

IntegerLanes integer_lanes(int width, uint64_t low, uint64_t range) {
  const int bits = 8 * width;
  const auto lane = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  const uint32_t repeat = ~uint32_t{0} / lane;
  return {bits - std::countr_zero(range),
          static_cast<uint32_t>(range - 1) * repeat,
          (static_cast<uint32_t>(low) & lane) * repeat,
          (uint32_t{1} << (bits - 1)) * repeat};
}

}  // namespace

FillRule float_rule(RandomFormat format) {
  switch (format) {
    case RandomFormat::kFloat64:
      return {FillKind::kFloat64, {}, {}, 0, 0, 0};
    case RandomFormat::kFloat32:
      return {FillKind::kFloat32, {}, {}, 0, 0, 0};
    case RandomFormat::kFloat16:
      return {FillKind::kHalves, narrow_float(11, 15), {}, 0, 0, 0};
    case RandomFormat::kBFloat16:
      return {FillKind::kHalves, narrow_float(8, 127), {}, 0, 0, 0};
    case RandomFormat::kFloat8E4M3Fn:
      return {FillKind::kBytes, narrow_float(4, 7), {}, 0, 0, 0};
    case RandomFormat::kFloat8E4M3FnUz:
      return {FillKind::kBytes, narrow_float(4, 8), {}, 0, 0, 0};
    case RandomFormat::kFloat8E5M2:
      return {FillKind::kBytes, narrow_float(3, 15), {}, 0, 0, 0};
    case RandomFormat::kFloat8E5M2FnUz:
      return {FillKind::kBytes, narrow_float(3, 16), {}, 0, 0, 0};
    case RandomFormat::kFloat8E8M0:
      return {FillKind::kPowersOfTwo, {}, {}, 0, 0, 0};
    default:
      return {FillKind::kNibbles, {}, {}, 0, 0, 0};
  }
}

FillRule integer_rule(int width, uint64_t low, uint64_t range) {
  const bool power_of_two = range > 1 && std::has_single_bit(range);
  if (width < 8 && power_of_two && range <= uint64_t{1} << (8 * width)) {
    return {FillKind::kLanes, {}, integer_lanes(width, low, range), width, low, range};
  }
  if (width == 8 && (power_of_two || range == 0 || range > uint64_t{1} << 32)) {
    return {FillKind::kIntegers64, {}, {}, width, low, range};
  }
  return {FillKind::kScaled, {}, {}, width, low, range};
}

}  // namespace opreplay::kernels
