// SPDX-License-Identifier: MIT
// A fuzz target for the scanner: bytes come in, pieces of every size are fed. The README beside it
// says how to run it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "scan.h"

namespace {

opreplay::ScanPlan kineto_plan() {
  return {.records_key = "traceEvents",
          .label_key = "schema",
          .phase_key = "ph",
          .phase = "X",
          .lane_key = "cat",
          .lanes = {{"cpu_op", 0}, {"kernel", 1}},
          .start_key = "ts",
          .duration_key = "dur",
          .process_key = "pid",
          .thread_key = "tid",
          .fields_key = "args",
          .id_keys = {{"External id", 0}, {"correlation", 1}},
          .name_key = "name",
          .list_keys = {"Input type", "Input Dims", "Concrete Inputs"},
          .signature_keys = {"kernel"}};
}

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // The first byte is the size of the pieces, so that every boundary gets its turn.
  const size_t step = data[0] == 0 ? size : data[0];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  opreplay::Scanner scanner(kineto_plan());
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, step);
    scanner.feed(piece);
    rest.remove_prefix(piece.size());
  }
  check(scanner.finish().offset < size);
  for (size_t lane = 0; lane < 2; ++lane) {
    const opreplay::ScanTable& table = scanner.table(lane);
    const std::vector<opreplay::ScanExample>& kinds = scanner.examples(lane);
    const auto examples = static_cast<int64_t>(kinds.size());
    check(table.duration.size() == table.start.size());
    check(table.thread.size() == table.start.size());
    check(std::all_of(table.distinct.begin(), table.distinct.end(), [&](int64_t number) {
      return 0 <= number && number < examples;
    }));
    check(std::all_of(kinds.begin(), kinds.end(), [&](const opreplay::ScanExample& kind) {
      return std::all_of(kind.cells.begin(), kind.cells.end(), [&](size_t cell) {
        return cell < scanner.cells().size();
      });
    }));
  }
  return 0;
}
