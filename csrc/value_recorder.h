// SPDX-License-Identifier: MIT
// Values of integer tensors that operators are called with, kept while a profiler records the
// calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace opreplay {

/// One tensor that a call got.
struct KeptTensor {
  /// Type name as the profiler writes it, for instance "long int"; "None" for an undefined element
  /// of a list.
  std::string type;
  std::vector<int64_t> sizes;
  /// Elements of an integer or bool tensor that is small enough, the last dimension running
  /// fastest.
  std::optional<std::vector<int64_t>> values;
};

/// An argument of one call that holds at least one tensor with values.
struct KeptArgument {
  /// Thread id of the system.
  int64_t thread;
  /// Operator name without overload.
  std::string op;
  /// Number of earlier calls of the operator on the thread.
  int64_t occurrence;
  /// Place in the schema.
  int64_t place;
  /// True for a list of tensors, which may be empty of values.
  bool is_list;
  std::vector<KeptTensor> tensors;
};

/// Begins to keep values of tensors of at most `max_elements` elements, for all threads.
///
/// Throws std::logic_error if values are being kept already.
void start_keeping_values(int64_t max_elements);

/// Ends it and returns what was kept, in the order of the calls of each thread.
std::vector<KeptArgument> stop_keeping_values();

}  // namespace opreplay
