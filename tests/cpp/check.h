// SPDX-License-Identifier: MIT
//
// The one assertion that the C++ tests use: a failed check names its place and ends the test.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace opreplay::test {

inline void check(
    bool held, const char* condition, const char* file, int line, const std::string& detail) {
  if (held) return;
  std::ostringstream text;
  text << file << ":" << line << ": " << condition << (detail.empty() ? "" : ": ") << detail;
  throw std::runtime_error(text.str());
}

}  // namespace opreplay::test

#define CHECK(condition) ::opreplay::test::check((condition), #condition, __FILE__, __LINE__, "")
#define CHECK_WITH(condition, detail) \
  ::opreplay::test::check((condition), #condition, __FILE__, __LINE__, (detail))
