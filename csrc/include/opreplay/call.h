// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "opreplay/export.h"

namespace opreplay {

/// How autograd sees a call.
enum class GradMode { kInference, kNoGrad, kGrad };

/// Which arguments of a call get storages of their own in a copy.
enum class Copied {
  kAll,      ///< every tensor
  kWeights,  ///< those that hold a quarter of the call's bytes or more and are only read
};

/// Sets a mode for its lifetime on this thread.
class OPREPLAY_API GradModeGuard {
 public:
  explicit GradModeGuard(GradMode mode);
  ~GradModeGuard();
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An operator with its boxed arguments, ready to be called any number of times.
class OPREPLAY_API Call {
 public:
  /// Throws c10::ValueError if the number of arguments is not the schema's.
  Call(c10::OperatorHandle op, std::vector<c10::IValue> arguments);

  /// Calls once and returns the outputs. The caller chooses the grad mode.
  [[nodiscard]] torch::jit::Stack run() const;

  /// Calls n times and drops the outputs. Never synchronises, allocates nothing of its own.
  void issue(int64_t n);

  /// The same with a stream as the current one.
  void issue(const c10::Stream& stream, int64_t n);

  [[nodiscard]] const c10::OperatorHandle& op() const noexcept { return op_; }
  [[nodiscard]] const std::vector<c10::IValue>& arguments() const noexcept { return arguments_; }

  /// Bytes of all distinct storages that the arguments refer to.
  [[nodiscard]] int64_t argument_bytes() const;

  /// True if the schema says that the operator writes to an argument that it also reads: a second
  /// call then starts from other values than the first.
  [[nodiscard]] bool updates_arguments() const;

  /// True if the operator changes sizes, strides or storage of an argument (unsqueeze_, set_).
  [[nodiscard]] bool changes_metadata() const;

  /// Bytes of the storages of the arguments that the operator updates.
  [[nodiscard]] int64_t updated_bytes() const;

  /// The same storages behind tensor objects of their own.
  [[nodiscard]] Call alias() const;

  /// Copies with storages of their own, laid into `arena` (uint8; may be undefined) as far as they
  /// fit. Arguments that share a storage share it in each copy.
  [[nodiscard]] std::vector<Call> copies(int64_t count,
                                         const at::Tensor& arena,
                                         Copied what = Copied::kAll) const;

  /// Bytes of the storages that a copy has to itself.
  [[nodiscard]] int64_t copied_bytes(Copied what) const;

  /// Copies of the bytes of the updated arguments, for `restore`.
  [[nodiscard]] std::vector<at::Tensor> updated_values() const;

  /// Gives the updated arguments the values that `updated_values` saved, of this call or of one
  /// that it is a copy of.
  void restore(const std::vector<at::Tensor>& values);

 private:
  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;
  torch::jit::Stack stack_;
};

}  // namespace opreplay
