// SPDX-License-Identifier: MIT
#include "opreplay/operator.h"

#include <algorithm>

namespace opreplay {

OperatorIndex::OperatorIndex() { refresh(); }

const std::vector<c10::OperatorHandle>& OperatorIndex::overloads(const std::string& name) const {
  static const std::vector<c10::OperatorHandle> none;
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? none : found->second;
}

void OperatorIndex::refresh() {
  by_name_.clear();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    // An implementation without a definition has a name but no schema: nothing to call it by.
    if (auto handle = dispatcher.findSchema(name)) by_name_[name.name].push_back(*handle);
  }
  for (auto& entry : by_name_) {
    std::sort(entry.second.begin(), entry.second.end(), [](const auto& a, const auto& b) {
      return a.operator_name().overload_name < b.operator_name().overload_name;
    });
  }
}

}  // namespace opreplay
