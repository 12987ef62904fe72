// SPDX-License-Identifier: MIT
//
// Replay bundles: calls with descriptions of their arguments, as `opreplay bundle` writes them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "opreplay/call.h"
#include "opreplay/export.h"
#include "opreplay/inputs.h"

namespace opreplay {

/// One call of a bundle: what runs, and a description of what it runs on.
struct OPREPLAY_API BundledCall {
  std::string op;                        ///< "aten::mm"
  std::string overload;                  ///< empty for the default overload
  std::string schema;                    ///< as the process that wrote the bundle had it
  std::string signature;                 ///< the stable hash of the call, as in plans and results
  GradMode mode = GradMode::kInference;  ///< how to run it; goes into the TimingPlan
  int64_t count = 0;                     ///< recorded calls that it stands for
  double recorded_host_us = 0;           ///< their median [microseconds]
  std::optional<double> recorded_device_us;  ///< [microseconds]; none where no kernel was recorded
  std::vector<std::string> libraries;        ///< files that register it, torch's own left out
  std::string recipe;                        ///< what a recipe chose; empty without one
  std::vector<std::string> assumptions;      ///< each guess that was made
  InputsDescription inputs;
  std::string place;  ///< file, number and name, for messages

  /// Bytes that the call's storages take.
  [[nodiscard]] int64_t bytes() const;

  /// Makes the arguments on a device. Each call has tensors of its own.
  ///
  /// Throws c10::ValueError or c10::TypeError, naming call and argument, where the operator is not
  /// registered, its schema is another, or a value does not fit; and what an operator throws that
  /// makes a value.
  [[nodiscard]] Call prepare(at::Device device) const;
};

/// The calls of a file. Immutable, cheap to copy, and safe to share between threads; a Call that it
/// prepares belongs to one thread.
class OPREPLAY_API Bundle {
 public:
  explicit Bundle(std::vector<BundledCall> calls);

  [[nodiscard]] std::size_t size() const noexcept { return calls_->size(); }

  /// Throws c10::IndexError if there is no such call.
  [[nodiscard]] const BundledCall& call(std::size_t index) const;

  [[nodiscard]] auto begin() const noexcept { return calls_->cbegin(); }
  [[nodiscard]] auto end() const noexcept { return calls_->cend(); }

 private:
  std::shared_ptr<const std::vector<BundledCall>> calls_;
};

/// Reads a bundle. Throws c10::ValueError with the file's name if it is no bundle, of a newer
/// format, cut short, damaged or malformed.
[[nodiscard]] OPREPLAY_API Bundle load_bundle(const std::string& path);

/// Writes what torch.save made behind the header that load_bundle() checks: the text
/// "opreplay-bundle", a zero byte, format version (u32), CRC-32C of the rest (u32) and its length
/// in bytes (u64), little-endian.
OPREPLAY_API void write_bundle(const std::string& path, std::string_view content);

/// Loads a shared library that registers operators; it stays loaded. Throws c10::ValueError.
OPREPLAY_API void load_library(const std::string& path);

}  // namespace opreplay
