// SPDX-License-Identifier: MIT
#include "json_index.h"

#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace opreplay {
namespace {

constexpr size_t kBlock = JsonIndex::kBlock;

/// Bit i tells whether byte i of a block is of the class.
struct Classes {
  uint64_t quote = 0;
  uint64_t backslash = 0;
  uint64_t open = 0;
  uint64_t close = 0;
  uint64_t control = 0;
  /// After such a byte a string may begin.
  uint64_t separator = 0;
};

#if defined(__SSE2__)

uint64_t mask_of(__m128i bytes) { return static_cast<uint16_t>(_mm_movemask_epi8(bytes)); }

Classes classify(const char* block) {
  Classes found;
  for (unsigned part = 0; part < kBlock; part += 16) {
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + part));
    // One bit apart: '[' and '{', ']' and '}'.
    const __m128i braces = _mm_or_si128(text, _mm_set1_epi8(0x20));
    const __m128i open = _mm_cmpeq_epi8(braces, _mm_set1_epi8('{'));
    const __m128i control =
        _mm_cmpeq_epi8(_mm_max_epu8(text, _mm_set1_epi8(0x1f)), _mm_set1_epi8(0x1f));
    const __m128i comma = _mm_cmpeq_epi8(text, _mm_set1_epi8(','));
    const __m128i colon = _mm_cmpeq_epi8(text, _mm_set1_epi8(':'));
    const __m128i blank = _mm_cmpeq_epi8(text, _mm_set1_epi8(' '));
    const __m128i separator = _mm_or_si128(_mm_or_si128(comma, colon), _mm_or_si128(blank, open));
    found.quote |= mask_of(_mm_cmpeq_epi8(text, _mm_set1_epi8('"'))) << part;
    found.backslash |= mask_of(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\'))) << part;
    found.open |= mask_of(open) << part;
    found.close |= mask_of(_mm_cmpeq_epi8(braces, _mm_set1_epi8('}'))) << part;
    found.control |= mask_of(control) << part;
    found.separator |= mask_of(_mm_or_si128(separator, control)) << part;
  }
  return found;
}

#else

Classes classify(const char* block) {
  Classes found;
  for (unsigned i = 0; i < kBlock; ++i) {
    const auto byte = static_cast<unsigned char>(block[i]);
    const uint64_t bit = uint64_t{1} << i;
    if (byte == '"') found.quote |= bit;
    if (byte == '\\') found.backslash |= bit;
    if ((byte | 0x20) == '{') found.open |= bit;
    if ((byte | 0x20) == '}') found.close |= bit;
    if (byte < 0x20) found.control |= bit;
    if (byte <= 0x20 || byte == ',' || byte == ':' || (byte | 0x20) == '{') found.separator |= bit;
  }
  return found;
}

#endif

/// Bytes after a backslash that is not escaped itself; `carry` goes from block to block.
uint64_t escaped_bytes(uint64_t backslash, bool& carry) {
  uint64_t escaped = carry ? 1 : 0;
  carry = false;
  while (backslash != 0) {
    const int at = std::countr_zero(backslash);
    backslash &= backslash - 1;
    if ((escaped >> at & 1) != 0) continue;
    if (at == 63) {
      carry = true;
    } else {
      escaped |= uint64_t{2} << at;
    }
  }
  return escaped;
}

/// Bit i of the result is the parity of the bits 0 to i.
uint64_t prefix_parity(uint64_t bits) {
  for (unsigned shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

}  // namespace

void JsonIndex::build(std::string_view text, State before) {
  const size_t blocks = text.size() / kBlock;
  for (auto* bits : {&quote_, &open_, &close_, &string_, &odd_}) bits->resize(blocks);
  bool in_string = before.in_string;
  bool escaped = before.escaped;
  bool separated = true;
  any_odd_ = false;
  for (size_t block = 0; block < blocks; ++block) {
    const Classes found = classify(text.data() + block * kBlock);
    uint64_t quote = found.quote;
    if (found.backslash != 0 || escaped) quote &= ~escaped_bytes(found.backslash, escaped);
    const uint64_t string = prefix_parity(quote) ^ (in_string ? ~uint64_t{0} : 0);
    in_string = (string >> 63) != 0;
    quote_[block] = quote;
    string_[block] = string;
    open_[block] = found.open & ~string;
    close_[block] = found.close & ~string;
    const uint64_t may_open = found.separator << 1 | (separated ? 1 : 0);
    separated = (found.separator >> 63) != 0;
    odd_[block] = (found.control & string) | (quote & string & ~may_open);
    any_odd_ |= odd_[block] != 0;
  }
  state_ = {in_string, escaped};
}

size_t JsonIndex::quote_from(size_t at) const noexcept {
  size_t block = at / kBlock;
  if (block >= quote_.size()) return kNone;
  uint64_t bits = quote_[block] & (~uint64_t{0} << at % kBlock);
  while (bits == 0) {
    if (++block == quote_.size()) return kNone;
    bits = quote_[block];
  }
  return block * kBlock + static_cast<size_t>(std::countr_zero(bits));
}

size_t JsonIndex::closing_from(size_t at, int64_t& depth) const noexcept {
  uint64_t wanted = ~uint64_t{0} << at % kBlock;
  for (size_t block = at / kBlock; block < close_.size(); ++block, wanted = ~uint64_t{0}) {
    const uint64_t open = open_[block] & wanted;
    uint64_t close = close_[block] & wanted;
    if ((open | close) == 0) continue;
    int64_t closed = 0;
    // Many blocks close fewer levels than are open, and need no look at their bits.
    if (std::popcount(close) >= depth) {
      for (; close != 0; close &= close - 1) {
        const int bit = std::countr_zero(close);
        const int64_t opened = std::popcount(open & ((uint64_t{1} << bit) - 1));
        if (depth + opened == ++closed) return block * kBlock + static_cast<size_t>(bit);
      }
    } else {
      closed = std::popcount(close);
    }
    depth += std::popcount(open) - closed;
  }
  return kNone;
}

bool JsonIndex::in_string(size_t at) const noexcept {
  return at < size() && (string_[at / kBlock] >> at % kBlock & 1) != 0;
}

bool JsonIndex::suspicious(size_t from, size_t to) const noexcept {
  if (!any_odd_ || from >= to) return false;
  const uint64_t first = ~uint64_t{0} << from % kBlock;
  const uint64_t last = ~uint64_t{0} >> (kBlock - 1 - (to - 1) % kBlock);
  const size_t from_block = from / kBlock;
  const size_t to_block = (to - 1) / kBlock;
  for (size_t block = from_block; block <= to_block; ++block) {
    uint64_t bits = odd_[block];
    if (block == from_block) bits &= first;
    if (block == to_block) bits &= last;
    if (bits != 0) return true;
  }
  return false;
}

}  // namespace opreplay
