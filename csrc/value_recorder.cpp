// SPDX-License-Identifier: MIT
#include "value_recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace opreplay {
namespace {

struct Keeper {
  std::mutex mutex;
  std::optional<at::CallbackHandle> callback;
  int64_t max_elements = 0;
  std::map<std::pair<int64_t, std::string>, int64_t> calls;
  std::vector<KeptArgument> kept;
};

Keeper& keeper() {
  static Keeper instance;
  return instance;
}

bool keeps_values(const at::Tensor& tensor, int64_t max_elements) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
         tensor.layout() == at::kStrided && !tensor.is_meta() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.numel() <= max_elements;
}

KeptTensor keep(const at::Tensor& tensor, int64_t max_elements) {
  if (!tensor.defined()) return {"None", {}, std::nullopt};
  KeptTensor kept{std::string(tensor.dtype().name()), tensor.sizes().vec(), std::nullopt};
  if (keeps_values(tensor, max_elements)) {
    const at::Tensor values = tensor.detach().to(at::kCPU, at::kLong).contiguous();
    const int64_t* first = values.const_data_ptr<int64_t>();
    kept.values.emplace(first, first + values.numel());
  }
  return kept;
}

std::optional<KeptArgument> keep_argument(const c10::IValue& value, int64_t max_elements) {
  KeptArgument kept{};
  if (value.isTensor()) {
    kept.tensors.push_back(keep(value.toTensor(), max_elements));
  } else if (value.isTensorList()) {
    kept.is_list = true;
    for (const at::Tensor& tensor : value.toTensorVector())
      kept.tensors.push_back(keep(tensor, max_elements));
  } else if (value.isOptionalTensorList()) {
    kept.is_list = true;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      kept.tensors.push_back(keep(tensor.value_or(at::Tensor()), max_elements));
    }
  }
  for (const KeptTensor& tensor : kept.tensors) {
    if (tensor.values) return kept;
  }
  return std::nullopt;
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& function) {
  // What is run here is none of the user's calls.
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ExcludeDispatchKeyGuard without_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const c10::InferenceMode without_autograd;
  const int64_t thread = ::syscall(SYS_gettid);
  const std::string op = function.name();
  Keeper& all = keeper();
  const std::lock_guard lock(all.mutex);
  const int64_t occurrence = all.calls[{thread, op}]++;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t place = 0; place < inputs.size(); ++place) {
    if (std::optional<KeptArgument> kept = keep_argument(inputs[place], all.max_elements)) {
      kept->thread = thread;
      kept->op = op;
      kept->occurrence = occurrence;
      kept->place = static_cast<int64_t>(place);
      all.kept.push_back(*std::move(kept));
    }
  }
  return nullptr;
}

}  // namespace

void start_keeping_values(int64_t max_elements) {
  Keeper& all = keeper();
  const std::lock_guard lock(all.mutex);
  if (all.callback) throw std::logic_error("values are being kept already");
  all.max_elements = max_elements;
  all.calls.clear();
  all.kept.clear();
  all.callback = at::addGlobalCallback(
      at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

std::vector<KeptArgument> stop_keeping_values() {
  Keeper& all = keeper();
  const std::lock_guard lock(all.mutex);
  if (!all.callback) throw std::logic_error("no values are being kept");
  at::removeCallback(*all.callback);
  all.callback.reset();
  return std::exchange(all.kept, {});
}

}  // namespace opreplay
