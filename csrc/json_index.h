// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace opreplay {

/// Where the quotes and brackets of a piece of JSON are, one bit a byte.
///
/// Brackets inside strings are left out, so that nesting is counted without reading strings.
class JsonIndex {
 public:
  /// What the text before a piece leaves open.
  struct State {
    bool in_string = false;
    bool escaped = false;
  };

  static constexpr size_t kBlock = 64;
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// Indexes the whole blocks of `text`.
  void build(std::string_view text, State before);

  /// What the indexed text leaves open.
  [[nodiscard]] State end_state() const noexcept { return state_; }
  /// Number of bytes indexed.
  [[nodiscard]] size_t size() const noexcept { return quote_.size() * kBlock; }
  /// Position of the first quote at or after `at` that no backslash escapes, or `kNone`.
  [[nodiscard]] size_t quote_from(size_t at) const noexcept;
  /// Position of the bracket that closes `depth` levels, counted from `at` on, or `kNone`; then
  /// `depth` is what remains open.
  [[nodiscard]] size_t closing_from(size_t at, int64_t& depth) const noexcept;
  /// True if the byte at `at` is inside a string (a closing quote counts as outside).
  [[nodiscard]] bool in_string(size_t at) const noexcept;
  /// True if [from, to) holds what JSON forbids and a stray quote leads to: a string that begins
  /// where none can, or holds a control character.
  [[nodiscard]] bool suspicious(size_t from, size_t to) const noexcept;

 private:
  State state_;
  bool any_odd_ = false;
  std::vector<uint64_t> quote_, open_, close_, string_, odd_;
};

}  // namespace opreplay
