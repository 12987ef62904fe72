// SPDX-License-Identifier: MIT
#include "scan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace opreplay {
namespace {

/// Bytes scanned at once: piece and index stay in the second-level cache.
constexpr size_t kPiece = size_t{1} << 18;
/// A record that is still open after so many bytes is read by the loose rule for strings.
constexpr size_t kLooseAfter = size_t{1} << 20;
constexpr size_t kFound = 12;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool ends_scalar(char c) { return c == ',' || c == '}' || c == ']' || is_space(c); }

bool in_scalar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

bool begins_value(char c) {
  return c == '"' || c == '{' || c == '[' || c == '-' || (c >= '0' && c <= '9') || c == 't' ||
         c == 'f' || c == 'n' || c == 'N' || c == 'I';
}

std::string_view unquoted(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
}

bool is_plain(char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }

/// Tells whether a value is a string that stands for itself.
bool is_plain_string(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' && value.back() == '"' &&
         std::ranges::all_of(unquoted(value), is_plain);
}

/// Returns where the plain string, or the list of integers or of such lists, that begins at `at`
/// ends; `JsonIndex::kNone` if there is none.
size_t plain_end(std::string_view text, size_t at) {
  if (text[at] == '"') {
    while (++at < text.size() && is_plain(text[at])) {
    }
    return at < text.size() && text[at] == '"' ? at + 1 : JsonIndex::kNone;
  }
  if (text[at] != '[') return JsonIndex::kNone;
  for (size_t depth = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '[') {
      ++depth;
    } else if (c == ']') {
      if (--depth == 0) return at + 1;
    } else if ((c < '0' || c > '9') && c != '-' && c != ',' && !is_space(c)) {
      return JsonIndex::kNone;
    }
  }
  return JsonIndex::kNone;
}

/// Finds the elements of a list, all plain strings or lists of integers; false if some are not.
bool split_list(std::string_view text, std::vector<std::string_view>& elements) {
  elements.clear();
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  const auto skip_space = [&](size_t at) {
    while (is_space(text[at])) ++at;  // the last byte is a bracket
    return at;
  };
  size_t at = skip_space(1);
  if (at == text.size() - 1) return true;
  while (true) {
    const size_t end = plain_end(text, at);
    if (end >= text.size()) return false;
    elements.push_back(text.substr(at, end - at));
    at = skip_space(end);
    if (at == text.size() - 1) return true;
    if (text[at] != ',') return false;
    at = skip_space(at + 1);
  }
}

template <typename Number>
std::optional<Number> number_in(std::string_view value) {
  value = unquoted(value);
  Number number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) return std::nullopt;
  return number;
}

}  // namespace

/// Reads JSON values at a position that moves. Ends of strings and containers come from the index,
/// or, loosely, from the text.
class Scanner::Walk {
 public:
  Walk(const Scanner& scanner, size_t at, bool loose)
      : text_(scanner.text()),
        index_(scanner.index_),
        last_(scanner.last_piece_),
        loose_(loose),
        at_(at) {}

  [[nodiscard]] size_t at() const noexcept { return at_; }

  /// Calls `member(role)` with the position at the value, for each member of the object at the
  /// position; `member` moves behind the value. Leaves the position behind the object.
  ///
  /// Writers give alike objects the same keys in the same order: `seen` holds those of the object
  /// before, which are told by one comparison each.
  template <typename Member>
  Step object(const KeyRoles& roles, SeenKeys& seen, Member member) {
    ++at_;
    for (size_t place = 0;; ++place) {
      size_t role = KeyRoles::kNoRole;
      if (!loose_ && place < seen.size() && text_.substr(at_).starts_with(seen[place].text)) {
        at_ += seen[place].text.size();
        role = seen[place].role;
        if (Step step = space(); step != Step::kDone) return step;
      } else {
        const size_t begin = at_;
        if (Step step = space(); step != Step::kDone) return step;
        if (text_[at_] == '}') break;
        if (place != 0) {
          if (text_[at_] != ',') return Step::kBad;
          ++at_;
          if (Step step = space(); step != Step::kDone) return step;
        }
        std::string_view name;
        if (Step step = key(name); step != Step::kDone) return step;
        role = roles.role_of(name);
        if (!loose_) {
          if (place == seen.size()) seen.emplace_back();
          seen[place] = {std::string(text_.substr(begin, at_ - begin)), role};
        }
      }
      const Step step = member(role);
      if (step == Step::kLeft) return Step::kDone;
      if (step != Step::kDone) return step;
    }
    ++at_;
    return Step::kDone;
  }

  /// Reads the key at the position, and leaves the position at its value.
  Step key(std::string_view& found) {
    if (text_[at_] != '"') return Step::kBad;
    if (Step step = value(found); step != Step::kDone) return step;
    found = unquoted(found);
    if (Step step = space(); step != Step::kDone) return step;
    if (text_[at_] != ':') return Step::kBad;
    ++at_;
    return space();
  }

  [[nodiscard]] bool at_object() const noexcept { return text_[at_] == '{'; }

  /// Tells whether what follows the position can follow a record.
  Step check_after_record() {
    if (Step step = space(); step != Step::kDone) return last_ ? Step::kDone : step;
    return text_[at_] == ',' || text_[at_] == ']' ? Step::kDone : Step::kBad;
  }

  /// Reads the value at the position, and leaves the position behind it.
  Step value(std::string_view& found) {
    const size_t begin = at_;
    const char first = text_[at_];
    if (first == '"') {
      const size_t end = string_end(at_);
      if (end == JsonIndex::kNone) return Step::kMore;
      at_ = end + 1;
    } else if (first == '{' || first == '[') {
      const size_t end = container_end(at_);
      if (end == JsonIndex::kNone) return Step::kMore;
      at_ = end + 1;
    } else {
      while (at_ < text_.size() && in_scalar(text_[at_])) ++at_;
      if (at_ == text_.size()) return Step::kMore;
      if (at_ == begin || !ends_scalar(text_[at_])) return Step::kBad;
    }
    found = text_.substr(begin, at_ - begin);
    return Step::kDone;
  }

  /// Moves behind the object whose members are being read; loosely, only reading on finds its end.
  Step leave() {
    if (loose_) return Step::kDone;
    int64_t depth = 1;
    const size_t end = index_.closing_from(at_, depth);
    if (end == JsonIndex::kNone) return Step::kMore;
    at_ = end + 1;
    return Step::kLeft;
  }

 private:
  Step space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? Step::kDone : Step::kMore;
  }

  [[nodiscard]] size_t string_end(size_t open) const {
    if (!loose_) return index_.quote_from(open + 1);
    for (size_t at = open + 1; at < text_.size(); ++at) {
      if (text_[at] == '\\') {
        ++at;
      } else if (text_[at] == '"') {
        const std::optional<bool> closes = closes_string(at);
        if (!closes) return JsonIndex::kNone;
        if (*closes) return at;
      }
    }
    return JsonIndex::kNone;
  }

  /// Tells whether JSON goes on after the quote at `at`; nothing where the text ends before that.
  [[nodiscard]] std::optional<bool> closes_string(size_t at) const {
    size_t next = text_.find_first_not_of(" \n\r\t", at + 1);
    if (next == text_.npos) return last_ ? std::optional(true) : std::nullopt;
    const char c = text_[next];
    if (c != ',') return c == ':' || c == '}' || c == ']';
    next = text_.find_first_not_of(" \n\r\t", next + 1);
    if (next == text_.npos) return last_ ? std::optional(true) : std::nullopt;
    return begins_value(text_[next]);
  }

  [[nodiscard]] size_t container_end(size_t open) const {
    if (!loose_) {
      int64_t depth = 0;
      return index_.closing_from(open, depth);
    }
    int64_t depth = 0;
    for (size_t at = open; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '"') {
        at = string_end(at);
        if (at == JsonIndex::kNone) return at;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        return at;
      }
    }
    return JsonIndex::kNone;
  }

  std::string_view text_;
  const JsonIndex& index_;
  bool last_;
  bool loose_;
  size_t at_;
};

size_t KeyRoles::slot_of(std::string_view key) noexcept {
  if (key.empty()) return 0;
  const auto first = static_cast<unsigned char>(key.front());
  const auto last = static_cast<unsigned char>(key.back());
  return (first * 7U + last * 3U + key.size()) % kSlots;
}

void KeyRoles::add(const std::string& key, size_t role) {
  if (key.empty() || 2 * ++taken_ > kSlots) {
    throw std::invalid_argument("expected at most 32 keys, none empty");
  }
  size_t slot = slot_of(key);
  while (!slots_[slot].first.empty() && slots_[slot].first != key) slot = (slot + 1) % kSlots;
  slots_[slot] = {key, role};
}

size_t KeyRoles::role_of(std::string_view key) const noexcept {
  for (size_t slot = slot_of(key); !slots_[slot].first.empty(); slot = (slot + 1) % kSlots) {
    if (slots_[slot].first == key) return slots_[slot].second;
  }
  return kNoRole;
}

Scanner::Scanner(ScanPlan plan) : plan_(std::move(plan)) {
  size_t lanes = 0;
  for (const auto& [value, lane] : plan_.lanes) lanes = std::max(lanes, lane + 1);
  size_t columns = 0;
  for (const auto& [key, column] : plan_.id_keys) columns = std::max(columns, column + 1);
  tables_.resize(lanes);
  alike_.resize(lanes);
  examples_.resize(lanes);
  fields_seen_.resize(lanes + 1);
  for (ScanTable& table : tables_) table.ids.resize(columns);
  record_.ids.resize(columns);
  elements_.resize(plan_.list_keys.size());
  record_.signature.resize(plan_.list_keys.size() + plan_.signature_keys.size());
  for (const auto& [value, lane] : plan_.lanes) lanes_.add(value, lane);
  for (const auto& [key, column] : plan_.id_keys) field_keys_.add(key, column);
  for (const auto* keys : {&plan_.list_keys, &plan_.signature_keys}) {
    for (const std::string& key : *keys) field_keys_.add(key, columns++);
  }
  own_keys_.add(plan_.phase_key, kPhase);
  own_keys_.add(plan_.lane_key, kLane);
  own_keys_.add(plan_.name_key, kName);
  own_keys_.add(plan_.start_key, kStart);
  own_keys_.add(plan_.duration_key, kDuration);
  own_keys_.add(plan_.process_key, kProcess);
  own_keys_.add(plan_.thread_key, kThread);
  own_keys_.add(plan_.fields_key, kFields);
}

void Scanner::feed(std::string_view piece) {
  for (; !piece.empty() && place_ != Place::kFailed;
       piece.remove_prefix(std::min(kPiece, piece.size()))) {
    const std::string_view part = piece.substr(0, kPiece);
    buffer_.append(part);
    size_ += part.size();
    if (buffer_.size() >= wait_for_) scan_buffer();
  }
}

ScanOutcome Scanner::finish() {
  if (place_ != Place::kFailed) {
    last_piece_ = true;
    scan_buffer();
  }
  if (place_ == Place::kFailed) return failure_;
  if (place_ == Place::kStart) return {ScanStatus::kForeign, 0, ""};
  if (place_ != Place::kEnd) return {ScanStatus::kTruncated, size_, ""};
  return {ScanStatus::kComplete, size_, ""};
}

void Scanner::scan_buffer() {
  do {
    // The rest of the last piece has no whole block: blanks make one of it.
    if (last_piece_)
      buffer_.resize((buffer_.size() / JsonIndex::kBlock + 1) * JsonIndex::kBlock, ' ');
    limit_ = buffer_.size() / JsonIndex::kBlock * JsonIndex::kBlock;
    index_.build(text(), before_);
    index_is_off_ = false;
    Step step = Step::kDone;
    while (step == Step::kDone && !index_is_off_) step = advance();
    if (step == Step::kBad) {
      const ScanStatus status =
          place_ == Place::kStart ? ScanStatus::kForeign : ScanStatus::kDamaged;
      // The last piece is padded: what is found must be of the document.
      const uint64_t left = size_ - std::min(size_, dropped_ + at_);
      failure_ = {status, dropped_ + at_, buffer_.substr(at_, std::min<uint64_t>(kFound, left))};
      place_ = Place::kFailed;
      return;
    }
    before_ = place_ == Place::kSkipped ? index_.end_state() : JsonIndex::State{};
    dropped_ += at_;
    buffer_.erase(0, at_);
    at_ = 0;
  } while (index_is_off_);
  // What is left is looked at again only when it has doubled, so that its cost stays linear.
  wait_for_ = 2 * buffer_.size();
}

Scanner::Step Scanner::advance() {
  switch (place_) {
    case Place::kStart:
      return begin();
    case Place::kObject:
      return next_member();
    case Place::kSkipped:
      return pass_over();
    case Place::kRecords:
      return next_record();
    default:
      at_ = limit_;
      return Step::kMore;
  }
}

Scanner::Step Scanner::begin() {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (dropped_ == 0 && text().substr(at_).starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
  if (!skip_space(false)) return Step::kMore;
  if (buffer_[at_] != '{' && buffer_[at_] != '[') return Step::kBad;
  top_is_array_ = has_records_ = buffer_[at_] == '[';
  place_ = top_is_array_ ? Place::kRecords : Place::kObject;
  ++at_;
  return Step::kDone;
}

Scanner::Step Scanner::next_member() {
  if (!skip_space(true)) return Step::kMore;
  if (buffer_[at_] == '}') {
    ++at_;
    place_ = Place::kEnd;
    return Step::kDone;
  }
  std::string_view key;
  std::string_view value;
  Walk walk(*this, at_, false);
  if (const Step step = walk.key(key); step != Step::kDone) return step;
  const char first = buffer_[walk.at()];
  if (first == '{' || first == '[') {
    const bool records = first == '[' && key == plan_.records_key;
    has_records_ |= records;
    place_ = records ? Place::kRecords : Place::kSkipped;
    skip_depth_ = 0;
    keys_.emplace_back(key);
    at_ = walk.at() + (records ? 1 : 0);
    return Step::kDone;
  }
  if (const Step step = walk.value(value); step != Step::kDone) return step;
  if (key == plan_.label_key) label_ = unquoted(value);
  keys_.emplace_back(key);
  at_ = walk.at();
  return Step::kDone;
}

Scanner::Step Scanner::pass_over() {
  const size_t end = index_.closing_from(at_, skip_depth_);
  if (end == JsonIndex::kNone) {
    at_ = limit_;
    return Step::kMore;
  }
  at_ = end + 1;
  place_ = Place::kObject;
  return Step::kDone;
}

Scanner::Step Scanner::next_record() {
  if (!skip_space(true)) return Step::kMore;
  if (buffer_[at_] == ']') {
    ++at_;
    place_ = top_is_array_ ? Place::kEnd : Place::kObject;
    return Step::kDone;
  }
  if (buffer_[at_] == '{') return read_record();
  std::string_view other;
  Walk walk(*this, at_, false);
  const Step step = walk.value(other);
  if (step != Step::kMore) at_ = walk.at();
  return step;
}

Scanner::Step Scanner::read_record() {
  Walk strict(*this, at_, false);
  Step step = read_members(strict);
  size_t end = strict.at();
  if (step == Step::kDone) step = strict.check_after_record();
  const bool doubtful = step == Step::kDone && index_.suspicious(at_, end);
  const bool overdue = step == Step::kMore && (last_piece_ || limit_ - at_ >= kLooseAfter);
  if (step == Step::kBad || doubtful || overdue) {
    Walk loose(*this, at_, true);
    step = read_members(loose);
    end = loose.at();
    if (step == Step::kBad) at_ = end;
    index_is_off_ = step == Step::kDone && index_.in_string(end);
  }
  if (step != Step::kDone) return step;
  ++record_count_;
  keep(text().substr(at_, end - at_), dropped_ + at_);
  at_ = end;
  return Step::kDone;
}

Scanner::Step Scanner::read_members(Walk& walk) {
  Record& record = record_;
  record.own = {};
  record.lane = KeyRoles::kNoRole;
  std::ranges::fill(record.ids, std::string_view{});
  std::ranges::fill(record.signature, std::string_view{});
  const auto field = [&](size_t role) {
    std::string_view value;
    const Step step = walk.value(value);
    if (role < record.ids.size()) {
      record.ids[role] = value;
    } else if (role != KeyRoles::kNoRole) {
      record.signature[role - record.ids.size()] = value;
    }
    return step;
  };
  return walk.object(own_keys_, own_seen_, [&](size_t role) {
    if (role == kFields && walk.at_object()) {
      const size_t lane = std::min(record.lane, tables_.size());
      return walk.object(field_keys_, fields_seen_[lane], field);
    }
    std::string_view value;
    if (const Step step = walk.value(value); step != Step::kDone) return step;
    if (role == KeyRoles::kNoRole) return Step::kDone;
    record.own[role] = value;
    if (role == kPhase && unquoted(value) != plan_.phase) return walk.leave();
    if (role == kLane) {
      record.lane = lanes_.role_of(unquoted(value));
      if (record.lane == KeyRoles::kNoRole) return walk.leave();
    }
    return Step::kDone;
  });
}

void Scanner::keep(std::string_view text, uint64_t offset) {
  const auto start = number_in<double>(record_.own[kStart]);
  const auto duration = record_.own[kDuration].empty() ? std::optional(0.0)
                                                       : number_in<double>(record_.own[kDuration]);
  if (unquoted(record_.own[kPhase]) != plan_.phase || record_.lane == KeyRoles::kNoRole || !start ||
      !duration || !std::isfinite(*start) || !std::isfinite(*duration)) {
    return;
  }
  ScanTable& table = tables_[record_.lane];
  table.start.push_back(*start);
  table.duration.push_back(std::max(*duration, 0.0));
  table.thread.push_back(thread_number());
  for (size_t column = 0; column < table.ids.size(); ++column) {
    const auto id = number_in<int64_t>(record_.ids[column]);
    table.ids[column].push_back(id && *id >= 0 ? *id : -1);
  }
  table.distinct.push_back(number_of_alike(record_.lane, text, offset));
}

int64_t Scanner::thread_number() {
  const std::string_view process = unquoted(record_.own[kProcess]);
  const std::string_view thread = unquoted(record_.own[kThread]);
  if (last_number_ >= 0 && thread == last_thread_ && process == last_process_) return last_number_;
  last_process_ = process;
  last_thread_ = thread;
  const auto [entry, is_new] = thread_numbers_.try_emplace(last_process_ + '\0' + last_thread_,
                                                           static_cast<int64_t>(threads_.size()));
  if (is_new) threads_.push_back(last_thread_);
  return last_number_ = entry->second;
}

int64_t Scanner::number_of_alike(size_t lane, std::string_view text, uint64_t offset) {
  std::string& key = alike_key_;
  key = record_.own[kName];
  for (const std::string_view value : record_.signature) {
    key += '\0';
    key += value;
  }
  if (const auto known = alike_[lane].find(std::string_view(key)); known != alike_[lane].end()) {
    return known->second;
  }
  const auto number = static_cast<int64_t>(alike_[lane].size());
  examples_[lane].push_back(example_of(text, offset));
  alike_[lane].emplace(key, number);
  return number;
}

ScanExample Scanner::example_of(std::string_view text, uint64_t offset) {
  ScanExample example;
  example.offset = offset;
  const auto lists = std::span(record_.signature).first(plan_.list_keys.size());
  const auto others = std::span(record_.signature).subspan(lists.size());
  const auto is_there = [](std::string_view value) { return !value.empty(); };
  example.has_lists = std::ranges::any_of(lists, is_there);
  example.plain = is_plain_string(record_.own[kName]) && std::ranges::none_of(others, is_there) &&
                  (!example.has_lists || split_into_cells(example.cells));
  if (example.plain) example.name = unquoted(record_.own[kName]);
  if (!example.plain || example.has_lists) example.text = text;
  return example;
}

bool Scanner::split_into_cells(std::vector<size_t>& cells) {
  size_t count = 0;
  for (size_t list = 0; list < elements_.size(); ++list) {
    const std::string_view text = record_.signature[list];
    if (text.empty()) continue;
    if (!split_list(text, elements_[list])) return false;
    if (elements_[list].empty() || (count != 0 && count != elements_[list].size())) return false;
    count = elements_[list].size();
  }
  std::string cell;
  for (size_t place = 0; place < count; ++place) {
    for (size_t list = 0; list < elements_.size(); ++list) {
      cell += list == 0 ? '[' : ',';
      cell += record_.signature[list].empty() ? "null" : elements_[list][place];
    }
    cell += ']';
    const auto [entry, is_new] = cell_numbers_.try_emplace(cell, cells_.size());
    if (is_new) cells_.push_back(cell);
    cells.push_back(entry->second);
    cell.clear();
  }
  return true;
}

bool Scanner::skip_space(bool comma) {
  while (at_ < limit_ && (is_space(buffer_[at_]) || (comma && buffer_[at_] == ','))) ++at_;
  return at_ < limit_;
}

}  // namespace opreplay
