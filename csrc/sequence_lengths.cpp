// SPDX-License-Identifier: MIT
#include "kernels/sequence_lengths.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "opreplay/block_tables.h"
#include "table_builders.h"

namespace opreplay {
namespace {

using kernels::LengthDraw;
using kernels::LengthRamp;

constexpr uint64_t kOrderStream = 0x6f72646572;  // "order"
constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();

void check_options(int64_t num_seqs, const SeqLenOptions& options) {
  check_at_least("num_seqs", num_seqs, 0);
  check_at_most("num_seqs", num_seqs, kernels::kMaxPool);
  TORCH_CHECK_VALUE(
      options.kind == "constant" || options.kind == "uniform" || options.kind == "zipf",
      "expected kind constant, uniform or zipf, got ",
      options.kind);
  check_at_least("low", options.low, 1);
  check_at_least("high", options.high, options.low);
  check_at_most("high", options.high, kMaxLength);
  if (options.maximum) {
    check_at_least("maximum", *options.maximum, options.low);
    check_at_most("maximum", *options.maximum, options.high);
  }
  TORCH_CHECK_VALUE(std::isfinite(options.s), "expected a finite s, got ", options.s);
  TORCH_CHECK_VALUE(!options.total_squares || options.total,
                    "expected total with total_squares, got total_squares ",
                    options.total_squares.value_or(0),
                    " alone");
  TORCH_CHECK_VALUE(!options.total || options.kind != "zipf",
                    "kind zipf draws lengths one by one and cannot meet a total, got total ",
                    options.total.value_or(0),
                    "; use uniform, with total_squares for the spread");
}

/// First lengths of the buckets of a Zipf draw: each length by itself up to 32, then 16 equal steps
/// per octave.
std::vector<int64_t> bucket_starts(int64_t low, int64_t high) {
  std::vector<int64_t> starts{low};
  for (int64_t length = 1, step = 1; length <= high; length += step) {
    if (length > low) starts.push_back(length);
    const bool octave = length >= 32 && (length & (length - 1)) == 0;
    if (octave) step = length / 16;
  }
  return starts;
}

LengthDraw length_draw(int64_t num_seqs, const SeqLenOptions& options) {
  const int64_t high = std::min(options.high, options.maximum.value_or(options.high));
  const int64_t low = options.kind == "constant" ? high : options.low;
  LengthDraw draw{};
  draw.seed = options.seed;
  draw.maximum = static_cast<int32_t>(options.maximum.value_or(0));
  draw.last_length = static_cast<int32_t>(high);
  draw.order =
      kernels::block_permutation(static_cast<uint32_t>(num_seqs), options.seed ^ kOrderStream);

  const std::vector<int64_t> starts =
      options.kind == "zipf" ? bucket_starts(low, high) : std::vector<int64_t>{low};
  std::vector<double> sums;
  double sum = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : high + 1;
    const double middle = 0.5 * static_cast<double>(starts[i] + end - 1);
    // Relative to the shortest length, so that no exponent overflows the sum.
    sum += static_cast<double>(end - starts[i]) *
           std::pow(middle / static_cast<double>(low), -options.s);
    sums.push_back(sum);
  }
  draw.buckets = static_cast<int32_t>(starts.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    draw.first_length[i] = static_cast<int32_t>(starts[i]);
    draw.upper_bits[i] = static_cast<uint32_t>(std::floor(sums[i] / sum * 0x1p32 - 0.5));
  }
  draw.upper_bits[starts.size() - 1] = ~uint32_t{0};
  return draw;
}

/// Sums over the ranks of a ramp.
struct RampSums {
  int64_t lengths = 0;
  double squares = 0;
};

RampSums sums_of(const LengthRamp& ramp) {
  RampSums sums;
  for (int64_t rank = 0; rank < ramp.ranks; ++rank) {
    const int64_t length = kernels::ramp_length(rank, ramp);
    sums.lengths += length;
    sums.squares += static_cast<double>(length) * static_cast<double>(length);
  }
  return sums;
}

/// Sets the start and the bump so that the lengths of a given slope add up to `total`, which lies
/// between all low and all high.
void meet_total(LengthRamp& ramp, int64_t total) {
  ramp.bump_begin = ramp.bump_end = 0;
  int64_t below = (ramp.low << 16) - ramp.slope * ramp.ranks;  // sum <= total
  int64_t above = ((ramp.high + 1) << 16) + ramp.slope * ramp.ranks;
  while (above - below > 1) {
    const int64_t middle = below + (above - below) / 2;
    ramp.start = middle;
    (sums_of(ramp).lengths <= total ? below : above) = middle;
  }
  ramp.start = below;
  // One more step of the start would lengthen some of the ranks just below `high` by a token each,
  // and overshoot: lengthen fewer of them.
  const int64_t missing = total - sums_of(ramp).lengths;
  int64_t movable = ramp.ranks;
  while (movable > 0 && kernels::ramp_length(movable - 1, ramp) >= ramp.high) --movable;
  ramp.bump_begin = movable - missing;
  ramp.bump_end = movable;
}

/// The slope whose squares come closest: they grow with the slope.
void meet_squares(LengthRamp& ramp, int64_t total, double squares) {
  const auto squares_at = [&](int64_t slope) {
    ramp.slope = slope;
    meet_total(ramp, total);
    return sums_of(ramp).squares;
  };
  int64_t below = 0;
  int64_t above = (ramp.high - ramp.low + 1) << 16;
  const double least = squares_at(below);
  const double most = squares_at(above);
  TORCH_CHECK_VALUE(squares >= least && squares <= most,
                    "expected total_squares that ",
                    ramp.ranks,
                    " lengths from ",
                    ramp.low,
                    " to ",
                    ramp.high,
                    " with sum ",
                    total,
                    " can have (the maximum taken off), ",
                    least,
                    " to ",
                    most,
                    ", got ",
                    squares);
  while (above - below > 1) {
    const int64_t middle = below + (above - below) / 2;
    (squares_at(middle) <= squares ? below : above) = middle;
  }
  const double error_below = squares - squares_at(below);
  const double error_above = squares_at(above) - squares;
  if (error_below <= error_above) squares_at(below);
}

LengthRamp length_ramp(int64_t num_seqs, const SeqLenOptions& options) {
  const int64_t maximum = options.maximum.value_or(0);
  LengthRamp ramp{};
  ramp.low = options.low;
  ramp.high = options.maximum.value_or(options.high);
  ramp.ranks = num_seqs - (options.maximum ? 1 : 0);
  ramp.maximum = maximum;
  ramp.order =
      kernels::block_permutation(static_cast<uint32_t>(num_seqs), options.seed ^ kOrderStream);
  check_at_least("total", *options.total, ramp.ranks * ramp.low + maximum);
  check_at_most("total", *options.total, ramp.ranks * ramp.high + maximum);
  if (ramp.ranks == 0) return ramp;

  const int64_t total = *options.total - maximum;
  if (options.total_squares) {
    const auto squares = static_cast<double>(*options.total_squares);
    meet_squares(
        ramp, total, squares - static_cast<double>(maximum) * static_cast<double>(maximum));
  } else {
    const int64_t half_ranks = std::max<int64_t>(1, 2 * (ramp.ranks - 1));
    ramp.slope = options.kind == "constant" ? 0 : (total << 16) / (ramp.ranks * half_ranks);
    meet_total(ramp, total);
  }
  return ramp;
}

}  // namespace

void fill_seq_lens(const at::Tensor& out, const SeqLenOptions& options) {
  check_table_device(out.device());
  check_buffer("out", out, at::kInt, out.device());
  const int64_t num_seqs = out.numel();
  check_options(num_seqs, options);
  if (num_seqs == 0) return;
  auto* const lengths = out.mutable_data_ptr<int32_t>();
  const c10::DeviceGuard guard(out.device());
  void* const stream = out.is_cpu() ? nullptr : current_stream(out.device());
  if (options.total) {
    const LengthRamp ramp = length_ramp(num_seqs, options);
    if (out.is_cpu()) {
      kernels::ramp_lengths_cpu(lengths, num_seqs, ramp, at_parallel_for);
    } else {
      kernels::ramp_lengths_gpu(lengths, num_seqs, ramp, stream);
    }
  } else {
    const LengthDraw draw = length_draw(num_seqs, options);
    if (out.is_cpu()) {
      kernels::draw_lengths_cpu(lengths, num_seqs, draw, at_parallel_for);
    } else {
      kernels::draw_lengths_gpu(lengths, num_seqs, draw, stream);
    }
  }
}

at::Tensor seq_lens(int64_t num_seqs, const SeqLenOptions& options, at::Device device) {
  check_options(num_seqs, options);
  check_table_device(device);
  at::Tensor out = at::empty({num_seqs}, at::TensorOptions(at::kInt).device(device));
  fill_seq_lens(out, options);
  return out;
}

}  // namespace opreplay
