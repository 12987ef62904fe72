// SPDX-License-Identifier: MIT
#include "opreplay/call.h"

#include <ATen/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace opreplay {

namespace {

// A page apart, a copy is not fetched along with its neighbour by the prefetcher.
constexpr int64_t kStorageAlignment = 4096;

using StorageMap = std::unordered_map<const c10::StorageImpl*, c10::Storage>;

/// Calls `visit` on every tensor that has a storage, lists included.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.has_storage()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

/// Rebuilds a value with every tensor replaced by `map(tensor)`.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor() && value.toTensor().defined()) return map(value.toTensor());
  if (!value.isList()) return value;
  const auto list = value.toList();
  c10::impl::GenericList copy(list.elementType());
  copy.reserve(list.size());
  for (const c10::IValue& element : value.toListRef()) copy.push_back(map_tensors(element, map));
  return copy;
}

/// The same values in another storage, with its own sizes and strides.
at::Tensor view_on(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor view = at::empty({0}, like.options());
  view.set_(storage, like.storage_offset(), like.sizes(), like.strides());
  view.set_requires_grad(like.requires_grad());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return view;
}

/// Hands out aligned pieces of a buffer; the pieces keep the buffer alive.
class Arena {
 public:
  explicit Arena(at::Tensor buffer) : buffer_(std::move(buffer)) {}

  /// An empty result means that the buffer is full, or on another device.
  [[nodiscard]] std::optional<c10::Storage> take(int64_t bytes, const c10::Device& device) {
    if (!buffer_.defined() || buffer_.device() != device || used_ + bytes > buffer_.numel()) {
      return std::nullopt;
    }
    auto* begin = static_cast<uint8_t*>(buffer_.mutable_data_ptr()) + used_;
    used_ += (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
    return at::from_blob(begin, {bytes}, [keep = buffer_](void*) {}, buffer_.options()).storage();
  }

 private:
  at::Tensor buffer_;
  int64_t used_ = 0;
};

/// The whole storage of a tensor, as bytes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  at::Tensor view = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
  return view.set_(tensor.storage(), 0, {bytes}, {1});
}

c10::Storage copy_storage(const at::Tensor& source, Arena& arena) {
  const at::Tensor from = as_bytes(source);
  const auto piece = arena.take(from.numel(), source.device());
  at::Tensor to = at::empty({piece ? 0 : from.numel()}, from.options());
  if (piece) to.set_(*piece, 0, {from.numel()}, {1});
  to.copy_(from);
  return to.storage();
}

/// Arguments that the operator both reads and writes: not the pure outputs of an out= variant.
bool is_updated(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite() && !argument.is_out();
}

/// Calls `visit` on every tensor that the operator reads and writes.
template <class Visit>
void for_each_updated(const c10::OperatorHandle& op,
                      const std::vector<c10::IValue>& arguments,
                      const Visit& visit) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_updated(op.schema().arguments()[i])) for_each_tensor(arguments[i], visit);
  }
}

using StorageSizes = std::unordered_map<const c10::StorageImpl*, int64_t>;

/// Bytes of each distinct storage behind the arguments.
StorageSizes storage_sizes(const std::vector<c10::IValue>& arguments) {
  StorageSizes sizes;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      sizes[tensor.storage().unsafeGetStorageImpl()] =
          static_cast<int64_t>(tensor.storage().nbytes());
    });
  }
  return sizes;
}

int64_t total(const StorageSizes& sizes) {
  int64_t bytes = 0;
  for (const auto& entry : sizes) bytes += entry.second;
  return bytes;
}

/// The storages that a copy of a call has to itself.
StorageSizes copied_storages(const c10::OperatorHandle& op,
                             const std::vector<c10::IValue>& arguments,
                             Copied what) {
  StorageSizes sizes = storage_sizes(arguments);
  if (what == Copied::kAll) return sizes;
  const int64_t bytes = total(sizes);
  std::erase_if(sizes, [&](const auto& entry) { return entry.second * 4 < bytes; });
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      sizes.erase(tensor.storage().unsafeGetStorageImpl());
    });
  }
  return sizes;
}

}  // namespace

struct GradModeGuard::State {
  std::optional<c10::InferenceMode> inference;
  std::optional<at::AutoGradMode> grad;
};

GradModeGuard::GradModeGuard(GradMode mode) : state_(std::make_unique<State>()) {
  if (mode == GradMode::kInference) {
    state_->inference.emplace();
  } else {
    state_->grad.emplace(mode == GradMode::kGrad);
  }
}

GradModeGuard::~GradModeGuard() = default;

Call::Call(c10::OperatorHandle op, std::vector<c10::IValue> arguments)
    : op_(std::move(op)), arguments_(std::move(arguments)) {
  const auto& schema = op_.schema();
  TORCH_CHECK_VALUE(arguments_.size() == schema.arguments().size(),
                    schema.operator_name(),
                    " takes ",
                    schema.arguments().size(),
                    " arguments, got ",
                    arguments_.size(),
                    "; give every argument of the schema, defaults included");
  stack_.reserve(std::max(arguments_.size(), schema.returns().size()));
}

torch::jit::Stack Call::run() const {
  torch::jit::Stack stack(arguments_.begin(), arguments_.end());
  op_.callBoxed(&stack);
  return stack;
}

void Call::issue(int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    stack_.assign(arguments_.begin(), arguments_.end());
    op_.callBoxed(&stack_);
    stack_.clear();
  }
}

void Call::issue(const c10::Stream& stream, int64_t n) {
  const c10::StreamGuard current(stream);
  issue(n);
}

int64_t Call::argument_bytes() const { return total(storage_sizes(arguments_)); }

int64_t Call::copied_bytes(Copied what) const {
  return total(copied_storages(op_, arguments_, what));
}

bool Call::updates_arguments() const {
  const auto& arguments = op_.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_updated);
}

bool Call::changes_metadata() const { return op_.hasTag(at::Tag::inplace_view); }

int64_t Call::updated_bytes() const {
  int64_t total = 0;
  for_each_updated(op_, arguments_, [&](const at::Tensor& tensor) {
    total += static_cast<int64_t>(tensor.storage().nbytes());
  });
  return total;
}

Call Call::alias() const {
  std::vector<c10::IValue> arguments;
  arguments.reserve(arguments_.size());
  for (const c10::IValue& argument : arguments_) {
    arguments.push_back(map_tensors(argument, [](const at::Tensor& tensor) -> at::Tensor {
      return tensor.has_storage() ? view_on(tensor.storage(), tensor) : tensor;
    }));
  }
  return Call(op_, std::move(arguments));
}

std::vector<Call> Call::copies(int64_t count, const at::Tensor& arena, Copied what) const {
  const StorageSizes chosen = copied_storages(op_, arguments_, what);
  Arena pieces(arena);
  std::vector<Call> result;
  result.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    StorageMap copied;
    const auto copy = [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.has_storage()) return tensor.clone();
      const auto* key = tensor.storage().unsafeGetStorageImpl();
      if (!chosen.contains(key)) return view_on(tensor.storage(), tensor);
      auto found = copied.find(key);
      if (found == copied.end()) found = copied.emplace(key, copy_storage(tensor, pieces)).first;
      return view_on(found->second, tensor);
    };
    std::vector<c10::IValue> arguments;
    arguments.reserve(arguments_.size());
    for (const c10::IValue& argument : arguments_) arguments.push_back(map_tensors(argument, copy));
    result.emplace_back(op_, std::move(arguments));
  }
  return result;
}

std::vector<at::Tensor> Call::updated_values() const {
  std::vector<at::Tensor> values;
  for_each_updated(op_, arguments_, [&](const at::Tensor& tensor) {
    values.push_back(as_bytes(tensor).clone());
  });
  return values;
}

void Call::restore(const std::vector<at::Tensor>& values) {
  std::size_t next = 0;
  for_each_updated(op_, arguments_, [&](const at::Tensor& tensor) {
    const at::Tensor& saved = values[next++];
    as_bytes(tensor).slice(0, 0, saved.numel()).copy_(saved);
  });
}

}  // namespace opreplay
