// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "opreplay/export.h"

namespace opreplay {

/// All overloads that the dispatcher knows, by operator name ("aten::add"). The dispatcher itself
/// finds an operator only by name and overload, and a trace records no overload.
class OPREPLAY_API OperatorIndex {
 public:
  OperatorIndex();

  /// Overloads of a name that have a schema, sorted by overload name; empty if there are none.
  [[nodiscard]] const std::vector<c10::OperatorHandle>& overloads(const std::string& name) const;

  /// Reads the dispatcher again: to be called after a library was loaded.
  void refresh();

  /// Number of operator names.
  [[nodiscard]] std::size_t size() const noexcept { return by_name_.size(); }

 private:
  std::unordered_map<std::string, std::vector<c10::OperatorHandle>> by_name_;
};

}  // namespace opreplay
