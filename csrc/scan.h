// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json_index.h"

namespace opreplay {

/// What to look for in a JSON document: an array of records, each an object.
///
/// A record is kept if the value of `phase_key` is `phase` and that of `lane_key` is one of
/// `lanes`.
struct ScanPlan {
  /// Key of the array in the top-level object; a top-level array counts as well.
  std::string records_key;
  /// Key whose (short, string) value in the top-level object is reported, not the records.
  std::string label_key;
  std::string phase_key;
  std::string phase;
  std::string lane_key;
  /// Values of `lane_key`, and the number of the lane that each goes to.
  std::vector<std::pair<std::string, size_t>> lanes;
  /// Keys of a number each; a record without the first is left out, the second is 0 by default.
  std::string start_key, duration_key;
  /// Keys whose values together name a thread; the second is its id.
  std::string process_key, thread_key;
  /// Key of the nested object that holds `id_keys`, `list_keys` and `signature_keys`.
  std::string fields_key;
  /// Nested keys of an integer each, and the number of the id column that each goes to.
  std::vector<std::pair<std::string, size_t>> id_keys;
  /// Records with the same bytes under `name_key` and the nested keys that follow are alike.
  std::string name_key;
  /// Nested keys of parallel lists: what they hold at the same place makes up a cell.
  std::vector<std::string> list_keys;
  std::vector<std::string> signature_keys;
};

/// One record of several that are alike.
struct ScanExample {
  /// Where it begins in the document [bytes].
  uint64_t offset;
  /// All of it as it stands in the document; empty where `name` tells all.
  std::string text;
  /// Its name, if `plain`.
  std::string name;
  /// Numbers of its cells, if `plain` and it has lists.
  std::vector<size_t> cells;
  bool has_lists = false;
  /// True if the name is printable ASCII without escapes, none of `signature_keys` is there, and
  /// the lists that are there are equally long, not empty, and hold nothing but strings like the
  /// name and lists of integers.
  bool plain = false;
};

/// The kept records of one lane, a row each, in the order of the document.
struct ScanTable {
  std::vector<double> start, duration;
  /// Index in `Scanner::threads()`.
  std::vector<int64_t> thread;
  /// Number of the first record that is alike, among the lane's examples.
  std::vector<int64_t> distinct;
  /// One column per id; -1 where the record has none.
  std::vector<std::vector<int64_t>> ids;
};

enum class ScanStatus { kComplete, kTruncated, kDamaged, kForeign };

/// How the scan of a document ended.
struct ScanOutcome {
  ScanStatus status;
  /// Where the document stops being readable, or its size [bytes].
  uint64_t offset;
  /// The first bytes from there on.
  std::string found;
};

/// A few keys, each with the role that its value plays; found with one comparison.
class KeyRoles {
 public:
  static constexpr size_t kNoRole = static_cast<size_t>(-1);

  /// Gives `key` a role. At most half of the slots may be taken.
  void add(const std::string& key, size_t role);
  /// Role of `key`, or `kNoRole`.
  [[nodiscard]] size_t role_of(std::string_view key) const noexcept;

 private:
  static constexpr size_t kSlots = 64;
  static size_t slot_of(std::string_view key) noexcept;

  std::array<std::pair<std::string, size_t>, kSlots> slots_;
  size_t taken_ = 0;
};

/// Cuts the records that a plan asks for out of a JSON document that arrives in pieces.
///
/// Memory stays at the kept columns, one example per kind of record, and the piece at hand. Values
/// that nobody asked for are passed over unread. A string with a quote that its writer forgot to
/// escape ends at the first quote that is followed by what JSON allows there.
class Scanner {
 public:
  explicit Scanner(ScanPlan plan);

  /// Scans the next piece of the document.
  void feed(std::string_view piece);
  /// Scans what is left; no piece may follow.
  ScanOutcome finish();

  [[nodiscard]] const ScanTable& table(size_t lane) const { return tables_.at(lane); }
  /// One record for each kind of a lane, by its number in `ScanTable::distinct`.
  [[nodiscard]] const std::vector<ScanExample>& examples(size_t lane) const {
    return examples_.at(lane);
  }
  /// Cells of all examples by number, each a JSON list with what the list keys hold at one place,
  /// `null` for a list that the record lacks.
  [[nodiscard]] const std::vector<std::string>& cells() const noexcept { return cells_; }
  /// Ids of the threads in the order of their numbers.
  [[nodiscard]] const std::vector<std::string>& threads() const noexcept { return threads_; }
  /// Keys of the top-level object.
  [[nodiscard]] const std::vector<std::string>& keys() const noexcept { return keys_; }
  /// Value of the plan's `label_key`, or nothing.
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  /// True if the document has an array of records.
  [[nodiscard]] bool has_records() const noexcept { return has_records_; }
  /// Number of objects in the array of records, kept or not.
  [[nodiscard]] uint64_t record_count() const noexcept { return record_count_; }

 private:
  enum class Place { kStart, kObject, kRecords, kSkipped, kEnd, kFailed };
  /// What a step of reading came to; `kLeft` is done with all members that remain as well.
  enum class Step { kDone, kLeft, kMore, kBad };

  class Walk;

  /// What stood between two values of the record before, key included, and the key's role.
  struct SeenKey {
    std::string text;
    size_t role;
  };
  using SeenKeys = std::vector<SeenKey>;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Numbers = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;

  /// Roles of a record's own values; those of its fields are numbered by column.
  enum Role : size_t {
    kPhase,
    kLane,
    kName,
    kStart,
    kDuration,
    kProcess,
    kThread,
    kFields,
    kRoles
  };

  /// The values of one record; each is empty where the record has none.
  struct Record {
    std::array<std::string_view, kRoles> own;
    std::vector<std::string_view> ids;
    /// Those of `list_keys`, then those of `signature_keys`.
    std::vector<std::string_view> signature;
    size_t lane = KeyRoles::kNoRole;
  };

  void scan_buffer();
  Step advance();
  Step begin();
  Step next_member();
  Step pass_over();
  Step next_record();
  Step read_record();
  Step read_members(Walk& walk);
  void keep(std::string_view text, uint64_t offset);
  int64_t thread_number();
  int64_t number_of_alike(size_t lane, std::string_view text, uint64_t offset);
  ScanExample example_of(std::string_view text, uint64_t offset);
  bool split_into_cells(std::vector<size_t>& cells);
  bool skip_space(bool comma);
  [[nodiscard]] std::string_view text() const noexcept { return {buffer_.data(), limit_}; }

  ScanPlan plan_;
  /// Keys of records to `Role`, of fields to columns (ids first), and categories to lanes.
  KeyRoles own_keys_, field_keys_, lanes_;
  std::vector<ScanTable> tables_;
  std::vector<std::vector<ScanExample>> examples_;
  std::vector<std::string> threads_;
  std::unordered_map<std::string, int64_t> thread_numbers_;
  /// The thread of the record before, which most records share.
  std::string last_process_, last_thread_;
  int64_t last_number_ = -1;
  /// Numbers of kinds of records by lane and by the bytes that make records alike.
  std::vector<Numbers> alike_;
  std::string alike_key_;
  std::vector<std::string> cells_;
  std::unordered_map<std::string, size_t> cell_numbers_;
  /// Elements of each list of the record at hand.
  std::vector<std::vector<std::string_view>> elements_;
  std::vector<std::string> keys_;
  std::string label_;
  bool has_records_ = false;
  uint64_t record_count_ = 0;
  Record record_;
  /// Keys of the record before, and of the fields of the one before in each lane, or in none.
  SeenKeys own_seen_;
  std::vector<SeenKeys> fields_seen_;

  /// What has arrived and isn't scanned; `at_` is the place in it, `limit_` how far it is indexed.
  std::string buffer_;
  size_t at_ = 0;
  size_t limit_ = 0;
  /// Bytes that have arrived, and those before `buffer_`.
  uint64_t size_ = 0;
  uint64_t dropped_ = 0;
  /// Size that `buffer_` must reach before it is worth another look.
  size_t wait_for_ = 0;
  bool last_piece_ = false;

  JsonIndex index_;
  JsonIndex::State before_;
  /// True if the index has taken text for strings and strings for text from `at_` on.
  bool index_is_off_ = false;

  Place place_ = Place::kStart;
  bool top_is_array_ = false;
  int64_t skip_depth_ = 0;
  ScanOutcome failure_{};
};

}  // namespace opreplay
