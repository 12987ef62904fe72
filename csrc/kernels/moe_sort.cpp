// SPDX-License-Identifier: MIT
#include "kernels/moe_sort.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "kernels/moe_sort_entry.h"

namespace opreplay::kernels {
namespace {

/// Where the next pair of a bin goes, and which token went there last: a token that comes twice is
/// seen without another pass.
struct Cursor {
  int32_t position;
  int32_t token;
};

constexpr int32_t kNoToken = -1;
constexpr int64_t kInts = sizeof(Cursor) / sizeof(int32_t);

/// Tokens of a chunk. Chunks are counted and placed each on its own and the stable order joins
/// them, so their size changes no result. Large enough that the pairs of a bin in a chunk fill
/// cache lines.
int64_t chunk_tokens(const MoeSortInput& in) {
  const int64_t pairs = std::max<int64_t>(int64_t{1} << 15, int64_t{16} * in.num_experts);
  return std::max<int64_t>(1, pairs / in.top_k);
}

int64_t chunk_count(const MoeSortInput& in, int64_t tokens) {
  const int64_t chunk = chunk_tokens(in);
  return std::max<int64_t>(1, (tokens + chunk - 1) / chunk);
}

/// Calls the body with std::true_type or std::false_type, so that inner loops hold no test.
template <typename Body>
void with_flag(bool flag, const Body& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

/// One sort: count per chunk, lay out the bins, place per chunk, pad.
class Sort {
 public:
  Sort(const MoeSortInput& in,
       const MoeSortOutput& out,
       int32_t* workspace,
       const ParallelFor& parallel_for)
      : in_(in),
        out_(out),
        parallel_for_(parallel_for),
        tokens_(sorted_tokens(in)),
        chunks_(chunk_count(in, tokens_)),
        dropped_(in.num_experts),
        outside_(in.num_experts + 1),
        columns_(in.num_experts + 2),
        cursors_(reinterpret_cast<Cursor*>(workspace)),
        bins_(workspace + kInts * columns_ * chunks_),
        starts_(bins_ + in.num_experts),
        counts_(starts_ + in.num_experts + 1) {}

  static int64_t workspace(const MoeSortInput& in) {
    const int64_t experts = in.num_experts;
    return kInts * (experts + 2) * chunk_count(in, in.tokens) + 3 * experts + 3;
  }

  void run() {
    number_bins();
    count();
    lay_out();
    if (out_.status[kStatusTooLong] > 0) return;
    place();
    pad();
  }

 private:
  void number_bins() {
    int32_t local = 0;
    for (int32_t expert = 0; expert < in_.num_experts; ++expert) {
      int32_t bin = expert;
      if (in_.table == ExpertTable::kMap) bin = in_.expert_table[expert];
      if (in_.table == ExpertTable::kMask) bin = in_.expert_table[expert] != 0 ? local++ : dropped_;
      bins_[expert] = bin >= 0 && bin < in_.num_experts ? bin : dropped_;
    }
  }

  [[nodiscard]] bool renumbers() const {
    return in_.table == ExpertTable::kMap || in_.table == ExpertTable::kMask;
  }

  template <bool kRenumbers>
  [[nodiscard]] int32_t column(int32_t id) const {
    if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(in_.num_experts)) return outside_;
    return kRenumbers ? bins_[id] : id;
  }

  template <typename Body>
  void for_each_chunk(const Body& body) const {
    const int64_t chunk_size = chunk_tokens(in_);
    parallel_for_(chunks_, 1, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t begin = chunk * chunk_size;
        body(cursors_ + chunk * columns_, begin, std::min(tokens_, begin + chunk_size));
      }
    });
  }

  void count() const {
    with_flag(renumbers(), [this](auto renumber) {
      for_each_chunk([this](Cursor* counters, int64_t begin, int64_t end) {
        std::fill_n(counters, columns_, Cursor{0, kNoToken});
        for (int64_t pair = begin * in_.top_k; pair < end * in_.top_k; ++pair) {
          ++counters[column<decltype(renumber)::value>(in_.topk_ids[pair])].position;
        }
      });
    });
  }

  /// Turns the counts of each chunk into the positions where its pairs start.
  void lay_out() {
    std::fill_n(counts_, columns_, 0);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Cursor* counters = cursors_ + chunk * columns_;
      for (int64_t bin = 0; bin < columns_; ++bin) counts_[bin] += counters[bin].position;
    }
    int32_t total = 0;
    for (int32_t bin = 0; bin < in_.num_experts; ++bin) {
      const int32_t padded = round_up(counts_[bin], in_.block_size);
      write_expert(out_, bin, counts_[bin], total, padded);
      starts_[bin] = total;
      total += padded;
    }
    starts_[in_.num_experts] = total;
    write_totals(in_, out_, total, tokens_, counts_[outside_]);
    out_.status[kStatusRepeated] = 0;

    // starts_ runs along the chunks and is set back to what it was.
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      Cursor* counters = cursors_ + chunk * columns_;
      for (int32_t bin = 0; bin < in_.num_experts; ++bin) {
        const int32_t pairs = counters[bin].position;
        counters[bin].position = starts_[bin];
        starts_[bin] += pairs;
      }
    }
    for (int32_t bin = 0; bin < in_.num_experts; ++bin) starts_[bin] -= counts_[bin];
  }

  void place() const {
    if (out_.sorted_ids == nullptr && out_.inverse == nullptr) return;
    with_flag(renumbers(), [this](auto renumber) {
      with_flag(is_packed(in_.format), [this, renumber](auto packed) {
        with_flag(out_.sorted_weights != nullptr, [this, renumber, packed](auto weighted) {
          with_flag(out_.inverse != nullptr, [this, renumber, packed, weighted](auto inverted) {
            for_each_chunk([this](Cursor* cursors, int64_t begin, int64_t end) {
              place_chunk<decltype(renumber)::value,
                          decltype(packed)::value,
                          decltype(weighted)::value,
                          decltype(inverted)::value>(cursors, begin, end);
            });
          });
        });
      });
    });
    if (out_.inverse == nullptr) return;
    std::fill_n(out_.inverse + tokens_ * in_.top_k, (in_.tokens - tokens_) * in_.top_k, -1);
  }

  template <bool kRenumbers, bool kPacked, bool kWeighted, bool kInverted>
  void place_chunk(Cursor* cursors, int64_t begin, int64_t end) const {
    int32_t repeated = 0;
    int64_t pair = begin * in_.top_k;
    for (int64_t token = begin; token < end; ++token) {
      for (int32_t slot = 0; slot < in_.top_k; ++slot, ++pair) {
        const int32_t bin = column<kRenumbers>(in_.topk_ids[pair]);
        if (bin >= in_.num_experts) {
          if constexpr (kInverted) out_.inverse[pair] = -1;
          continue;
        }
        const Cursor cursor = cursors[bin];
        cursors[bin] = {cursor.position + 1, static_cast<int32_t>(token)};
        repeated += cursor.token == token;
        out_.sorted_ids[cursor.position] =
            kPacked ? packed_entry(token, slot) : static_cast<int32_t>(pair);
        if constexpr (kWeighted) out_.sorted_weights[cursor.position] = in_.topk_weights[pair];
        if constexpr (kInverted) out_.inverse[pair] = cursor.position;
      }
    }
    if (kPacked && repeated > 0) {
      std::atomic_ref(out_.status[kStatusRepeated]).fetch_add(repeated, std::memory_order_relaxed);
    }
  }

  /// Fills what no pair fills: the end of each expert's last block, and the buffers past the last
  /// block.
  void pad() const {
    const int64_t grain = std::max<int64_t>(1, kGrainEntries / in_.block_size);
    parallel_for_(in_.num_experts, grain, [this](int64_t begin, int64_t end) {
      for (int64_t bin = begin; bin < end; ++bin) {
        pad_entries(starts_[bin] + counts_[bin], starts_[bin + 1]);
        if (out_.block_experts == nullptr) continue;
        std::fill(out_.block_experts + starts_[bin] / in_.block_size,
                  out_.block_experts + starts_[bin + 1] / in_.block_size,
                  block_name(in_, static_cast<int32_t>(bin)));
      }
    });
    const int64_t total = starts_[in_.num_experts];
    parallel_for_(out_.length - total, kGrainEntries, [this, total](int64_t begin, int64_t end) {
      pad_entries(total + begin, total + end);
    });
    if (out_.block_experts != nullptr) {
      std::fill(out_.block_experts + total / in_.block_size,
                out_.block_experts + out_.num_blocks,
                unused_block_name(in_));
    }
  }

  void pad_entries(int64_t begin, int64_t end) const {
    if (out_.sorted_ids != nullptr) {
      std::fill(out_.sorted_ids + begin, out_.sorted_ids + end, padding_entry(in_, tokens_));
    }
    if (out_.sorted_weights != nullptr) {
      std::fill(out_.sorted_weights + begin, out_.sorted_weights + end, 0.0F);
    }
  }

  const MoeSortInput& in_;
  const MoeSortOutput& out_;
  const ParallelFor& parallel_for_;
  const int64_t tokens_;
  const int64_t chunks_;
  const int32_t dropped_;  ///< column of pairs whose expert is not here
  const int32_t outside_;  ///< column of ids that are no expert
  const int64_t columns_;
  Cursor* const cursors_;  ///< [chunks, columns]
  int32_t* const bins_;    ///< [num_experts]
  int32_t* const starts_;  ///< [num_experts + 1]
  int32_t* const counts_;  ///< [columns]
};

}  // namespace

int64_t moe_sort_workspace_cpu(const MoeSortInput& in) { return Sort::workspace(in); }

void moe_sort_cpu(const MoeSortInput& in,
                  const MoeSortOutput& out,
                  int32_t* workspace,
                  const ParallelFor& parallel_for) {
  Sort(in, out, workspace, parallel_for).run();
}

}  // namespace opreplay::kernels
