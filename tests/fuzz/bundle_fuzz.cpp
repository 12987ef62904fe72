// SPDX-License-Identifier: MIT
//
// libFuzzer target of the bundle reader. An odd first byte gives the rest a header that fits, so
// that the checksum does not end every run.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>

#include "opreplay/bundle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static const std::string path = "/tmp/opreplay_bundle_fuzz_" + std::to_string(getpid());
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr int64_t kMostBytes = 1 << 24;
  try {
    if (data[0] % 2 == 1) {
      opreplay::write_bundle(path, content);
    } else {
      std::ofstream(path, std::ios::binary) << content;
    }
    for (const auto& call : opreplay::load_bundle(path)) {
      if (call.bytes() <= kMostBytes) static_cast<void>(call.prepare(at::kCPU));
    }
  } catch (const std::exception&) {  // what it refuses, it refuses
    return 0;
  }
  return 0;
}
