// SPDX-License-Identifier: MIT
#include "opreplay/inputs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_empty_affine_quantized.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "opreplay/random.h"

namespace opreplay {
namespace {

/// The integers that the memory of a dtype without arithmetic is filled as.
std::optional<at::ScalarType> filled_as(at::ScalarType dtype) {
  switch (dtype) {
    case at::kQInt8:
      return at::kChar;
    case at::kQInt32:
      return at::kInt;
    case at::kBits16:
      return at::kUInt16;
    case at::kQUInt8:
    case at::kQUInt4x2:
    case at::kQUInt2x4:
    case at::kBits1x8:
    case at::kBits2x4:
    case at::kBits4x2:
    case at::kBits8:
    case at::kInt1:
    case at::kInt2:
    case at::kInt3:
    case at::kInt4:
    case at::kInt5:
    case at::kInt6:
    case at::kInt7:
    case at::kUInt1:
    case at::kUInt2:
    case at::kUInt3:
    case at::kUInt4:
    case at::kUInt5:
    case at::kUInt6:
    case at::kUInt7:
      return at::kByte;
    default:
      return std::nullopt;
  }
}

int64_t elements_per_byte(at::ScalarType dtype) {
  return dtype == at::kQUInt4x2 ? 2 : dtype == at::kQUInt2x4 ? 4 : 1;
}

/// a * b + c of numbers that are not negative; throws where int64 cannot hold it.
int64_t multiply_add(int64_t a, int64_t b, int64_t c) {
  int64_t result = 0;
  const bool overflow =
      __builtin_mul_overflow(a, b, &result) || __builtin_add_overflow(result, c, &result);
  TORCH_CHECK_VALUE(!overflow, "a tensor of more than 2^63 elements was described");
  return result;
}

void check_tensor(const TensorDescription& tensor) {
  TORCH_CHECK_VALUE(tensor.sizes.size() == tensor.strides.size(),
                    "expected as many strides as sizes, got ",
                    tensor.strides,
                    " for sizes ",
                    tensor.sizes);
  TORCH_CHECK_VALUE(tensor.storage_numel >= 0 && tensor.storage_offset >= 0,
                    "expected a storage and an offset of 0 or more elements, got ",
                    tensor.storage_numel,
                    " and ",
                    tensor.storage_offset);
  int64_t last = tensor.storage_offset;
  bool empty = false;
  for (std::size_t dim = 0; dim < tensor.sizes.size(); ++dim) {
    TORCH_CHECK_VALUE(tensor.sizes[dim] >= 0 && tensor.strides[dim] >= 0,
                      "expected sizes and strides of 0 or more, got ",
                      tensor.sizes,
                      " and ",
                      tensor.strides);
    if (tensor.sizes[dim] == 0) {
      empty = true;
    } else {
      last = multiply_add(tensor.sizes[dim] - 1, tensor.strides[dim], last);
    }
  }
  TORCH_CHECK_VALUE(empty || last < tensor.storage_numel,
                    "sizes ",
                    tensor.sizes,
                    " with strides ",
                    tensor.strides,
                    " reach element ",
                    last,
                    " of a storage of ",
                    tensor.storage_numel);
}

int64_t storage_bytes(const TensorDescription& tensor) {
  const int64_t per_byte = elements_per_byte(tensor.dtype);
  if (per_byte > 1) return multiply_add(1, tensor.storage_numel / per_byte, 1);
  return multiply_add(
      tensor.storage_numel, static_cast<int64_t>(c10::elementSize(tensor.dtype)), 0);
}

/// Tensors of several dtypes on one storage get one each, as do quantized tensors.
using StorageKey = std::tuple<int64_t, at::ScalarType, bool>;

std::optional<StorageKey> shared_key(const TensorDescription& tensor) {
  if (tensor.storage < 0 || c10::isQIntType(tensor.dtype)) return std::nullopt;
  return StorageKey{tensor.storage, tensor.dtype, tensor.on_cpu};
}

/// Calls `visit(tensor, item)` on the described tensors of an argument.
template <class Visit>
void for_each_described(const ValueDescription& value, const Visit& visit) {
  if (const auto* tensor = std::get_if<TensorDescription>(&value)) {
    visit(*tensor, 0);
  } else if (const auto* list = std::get_if<std::shared_ptr<const ListDescription>>(&value)) {
    const auto& elements = (*list)->elements;
    for (std::size_t item = 0; item < elements.size(); ++item) {
      if (const auto* element = std::get_if<TensorDescription>(&elements[item])) {
        visit(*element, static_cast<int64_t>(item));
      }
    }
  }
}

at::Tensor wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::OperatorHandle find_operator(const std::string& op, const std::string& overload) {
  const auto found = c10::Dispatcher::singleton().findSchema({op, overload});
  TORCH_CHECK_VALUE(found.has_value(),
                    "no library in this process registers ",
                    op,
                    overload.empty() ? "" : ".",
                    overload,
                    "; load the library that does first (load_library)");
  return *found;
}

/// An int64 tensor that hands its value to an operator when nothing refers to it any more.
at::Tensor handle_tensor(int64_t value, const std::string& release) {
  if (release.empty()) return c10::scalar_to_tensor(value);
  const c10::OperatorHandle op = find_operator(release, "");
  TORCH_CHECK_VALUE(op.schema().arguments().size() == 1, release, " takes more than a handle");
  const auto give_back = [op](void* owned) {
    const std::unique_ptr<int64_t> handle(static_cast<int64_t*>(owned));
    torch::jit::Stack stack{*handle};
    op.callBoxed(&stack);
  };
  return at::from_blob(new int64_t(value), {}, give_back, at::TensorOptions(at::kLong));
}

/// A tensor of a call and the whole of its storage, in a dtype that can be filled.
struct MadeTensor {
  const TensorDescription* description;
  at::Tensor tensor;
  at::Tensor memory;
  uint64_t stream;
};

class InputMaker {
 public:
  InputMaker(const InputsDescription& description, at::Device device)
      : description_(description), device_(device) {}

  Inputs make(const c10::OperatorHandle& op) {
    const auto& parameters = op.schema().arguments();
    const auto& values = description_.arguments;
    TORCH_CHECK_VALUE(values.size() == parameters.size(),
                      op.schema().name(),
                      " takes ",
                      parameters.size(),
                      " arguments, ",
                      values.size(),
                      " are described");
    allocate();
    Inputs inputs;
    for (std::size_t place = 0; place < values.size(); ++place) {
      try {
        inputs.arguments.push_back(
            typed(values[place], parameters[place], static_cast<int64_t>(place)));
      } catch (c10::Error& error) {
        error.add_context("argument " + parameters[place].name());
        throw;
      }
    }
    outputs_.reserve(description_.steps.size());
    for (const Step& step : description_.steps) {
      try {
        outputs_.push_back(run(step));
      } catch (c10::Error& error) {
        error.add_context("step " + std::to_string(outputs_.size()) + " (" + step.op + ")");
        throw;
      }
    }
    for (const auto& [place, made] : made_) fill(made);
    for (const Produced& produced : description_.produced) {
      TORCH_CHECK_VALUE(
          produced.argument >= 0 && produced.argument < static_cast<int64_t>(values.size()),
          "argument ",
          produced.argument,
          " is produced, there are ",
          values.size());
      const c10::IValue value = referred(produced.made);
      inputs.arguments[static_cast<std::size_t>(produced.argument)] =
          value.isInt() ? c10::IValue(handle_tensor(value.toInt(), produced.release)) : value;
    }
    inputs.bytes = input_bytes(description_);
    return inputs;
  }

 private:
  void allocate() {
    std::map<StorageKey, int64_t> numel;
    for (const auto& value : description_.arguments) {
      for_each_described(value, [&](const TensorDescription& tensor, int64_t) {
        check_tensor(tensor);
        if (const auto key = shared_key(tensor)) {
          numel[*key] = std::max(numel[*key], tensor.storage_numel);
        }
      });
    }
    std::map<StorageKey, at::Tensor> shared;
    for (std::size_t place = 0; place < description_.arguments.size(); ++place) {
      for_each_described(
          description_.arguments[place], [&](const TensorDescription& tensor, int64_t item) {
            at::Tensor storage;
            if (const auto key = shared_key(tensor)) {
              at::Tensor& one = shared[*key];
              if (!one.defined()) one = at::empty({numel[*key]}, options(tensor));
              storage = one;
            }
            const uint64_t stream =
                (static_cast<uint64_t>(place) << 40) | (static_cast<uint64_t>(item) << 8);
            made_.emplace(std::pair(static_cast<int64_t>(place), item),
                          allocated(tensor, storage, stream));
          });
    }
  }

  [[nodiscard]] at::TensorOptions options(const TensorDescription& tensor) const {
    return at::TensorOptions(tensor.dtype).device(tensor.on_cpu ? at::kCPU : device_);
  }

  /// No view of another tensor: detach_ and set_ refuse one.
  MadeTensor allocated(const TensorDescription& tensor, at::Tensor storage, uint64_t stream) const {
    constexpr double kScale = 1.0 / 128;
    at::Tensor made;
    if (c10::isQIntType(tensor.dtype)) {
      storage = at::_empty_affine_quantized({tensor.storage_numel}, options(tensor), kScale, 0);
      made = at::_empty_affine_quantized({0}, options(tensor), kScale, 0);
    } else {
      if (!storage.defined()) storage = at::empty({tensor.storage_numel}, options(tensor));
      made = at::empty({0}, options(tensor));
    }
    made.set_(storage.storage(), tensor.storage_offset, tensor.sizes, tensor.strides);
    at::Tensor memory = storage;
    if (const auto integer = filled_as(tensor.dtype)) {
      const auto bytes = static_cast<int64_t>(storage.storage().nbytes());
      memory = at::empty({0}, options(tensor).dtype(*integer));
      const int64_t count = bytes / static_cast<int64_t>(c10::elementSize(*integer));
      memory.set_(storage.storage(), 0, {count}, {1});
    }
    return {&tensor, std::move(made), std::move(memory), stream};
  }

  void fill(const MadeTensor& made) const {
    const at::Tensor& memory = made.memory;
    const TensorDescription& tensor = *made.description;
    if (tensor.fill == Fill::kNone || memory.numel() == 0) return;
    if (tensor.fill == Fill::kIntegers) {
      fill_random_integers(memory, tensor.low, tensor.high, description_.seed, made.stream);
    } else if (at::isIntegralType(memory.scalar_type(), true)) {
      const bool is_signed = c10::isSignedType(memory.scalar_type());
      const auto bits = static_cast<int64_t>(8 * memory.element_size());
      const int64_t range = int64_t{1} << std::min<int64_t>(bits, 62);
      const int64_t low = is_signed ? -range / 2 : 0;
      fill_random_integers(memory, low, low + range, description_.seed, made.stream);
    } else {
      fill_random(memory, description_.seed, made.stream);
    }
  }

  /// The outputs of a step.
  torch::jit::Stack run(const Step& step) {
    const c10::OperatorHandle op = find_operator(step.op, step.overload);
    const auto& parameters = op.schema().arguments();
    TORCH_CHECK_VALUE(step.arguments.size() == parameters.size(),
                      "it takes ",
                      parameters.size(),
                      " arguments, ",
                      step.arguments.size(),
                      " are described");
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      stack.push_back(typed(step.arguments[i], parameters[i], -1));
    }
    op.callBoxed(&stack);
    return stack;
  }

  c10::IValue referred(const Reference& reference) const {
    const auto missing = [&](std::size_t count, const char* what) {
      TORCH_CHECK_VALUE(reference.index >= 0 && static_cast<std::size_t>(reference.index) < count,
                        what,
                        " ",
                        reference.index,
                        " is referred to, there are ",
                        count);
    };
    switch (reference.kind) {
      case Reference::Kind::kConstant:
        missing(description_.constants.size(), "stored tensor");
        return description_.constants[static_cast<std::size_t>(reference.index)];
      case Reference::Kind::kArgument:
      case Reference::Kind::kMemory: {
        const auto found = made_.find({reference.index, std::max<int64_t>(reference.item, 0)});
        TORCH_CHECK_VALUE(found != made_.end(), "argument ", reference.index, " is no tensor");
        return reference.kind == Reference::Kind::kArgument ? found->second.tensor
                                                            : found->second.memory;
      }
      case Reference::Kind::kOutput:
        break;
    }
    missing(outputs_.size(), "step");
    const auto& outputs = outputs_[static_cast<std::size_t>(reference.index)];
    TORCH_CHECK_VALUE(
        reference.output >= 0 && static_cast<std::size_t>(reference.output) < outputs.size(),
        "output ",
        reference.output,
        " of step ",
        reference.index,
        " is referred to, it has ",
        outputs.size());
    const c10::IValue& output = outputs[static_cast<std::size_t>(reference.output)];
    if (reference.item < 0) return output;
    TORCH_CHECK_VALUE(
        output.isList() && static_cast<std::size_t>(reference.item) < output.toListRef().size(),
        "element ",
        reference.item,
        " of an output is referred to, which it does not have");
    return output.toListRef()[static_cast<std::size_t>(reference.item)];
  }

  at::Generator generator(const GeneratorDescription& wanted) {
    at::Generator& made = generators_[wanted.number];
    if (made.defined()) return made;
    const at::Device device = wanted.on_cpu ? at::Device(at::kCPU) : device_;
    made = device.is_cpu() ? at::detail::createCPUGenerator(wanted.seed)
                           : at::globalContext()
                                 .getAcceleratorHooksInterface(device.type())
                                 .getNewGenerator(device.index());
    made.set_current_seed(wanted.seed);
    return made;
  }

  /// A described value as the parameter of a schema wants it. `place` is that of an argument of
  /// the call; -1 in a step.
  c10::IValue typed(const ValueDescription& value, const c10::Argument& parameter, int64_t place) {
    return typed(value, parameter.type(), parameter.N().value_or(0), place, 0);
  }

  c10::IValue typed(const ValueDescription& value,
                    const c10::TypePtr& type,
                    int32_t broadcast,
                    int64_t place,
                    int64_t item) {
    const auto* plain = std::get_if<c10::IValue>(&value);
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (plain != nullptr && plain->isNone()) return {};
      return typed(value, optional->getElementType(), broadcast, place, item);
    }
    if (const auto list = type->cast<c10::ListType>()) {
      return typed_list(value, list->getElementType(), broadcast, place);
    }
    if (const auto* wanted = std::get_if<GeneratorDescription>(&value)) {
      return checked(generator(*wanted), type);
    }
    if (std::holds_alternative<RunDevice>(value)) return checked(device_, type);
    if (const auto* reference = std::get_if<Reference>(&value)) {
      return checked(referred(*reference), type);
    }
    if (std::holds_alternative<TensorDescription>(value)) {
      const auto found = made_.find({place, item});
      TORCH_CHECK_VALUE(found != made_.end(), "a step cannot describe a tensor, only refer to one");
      if (type->kind() == c10::TypeKind::StorageType) return found->second.tensor.storage();
      return checked(found->second.tensor, type);
    }
    TORCH_CHECK_TYPE(plain != nullptr, "expected ", type->str(), ", got a list");
    return typed_plain(*plain, type);
  }

  c10::IValue typed_list(const ValueDescription& value,
                         const c10::TypePtr& element_type,
                         int32_t broadcast,
                         int64_t place) {
    c10::impl::GenericList made(element_type);
    if (const auto* list = std::get_if<std::shared_ptr<const ListDescription>>(&value)) {
      for (const auto& element : (*list)->elements) {
        const auto item = static_cast<int64_t>(made.size());
        made.push_back(typed(element, element_type, 0, place, item));
      }
      return made;
    }
    if (const auto* reference = std::get_if<Reference>(&value)) {
      return checked(referred(*reference), c10::ListType::create(element_type));
    }
    const c10::IValue single = typed(value, element_type, 0, place, 0);
    TORCH_CHECK_TYPE(broadcast > 0, "expected a list, got ", single.tagKind());
    for (int32_t i = 0; i < broadcast; ++i) made.push_back(single);
    return made;
  }

  static c10::IValue checked(c10::IValue value, const c10::TypePtr& type) {
    TORCH_CHECK_TYPE(
        value.type()->isSubtypeOf(*type), "expected ", type->str(), ", got ", value.tagKind());
    return value;
  }

  static c10::IValue typed_plain(const c10::IValue& value, const c10::TypePtr& type) {
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        if (value.isNone()) return at::Tensor();
        if (value.isScalar()) return wrapped_number(value.toScalar());
        break;
      case c10::TypeKind::NumberType:
        if (value.isScalar()) return value;
        break;
      case c10::TypeKind::FloatType:
        if (value.isInt()) return static_cast<double>(value.toInt());
        break;
      case c10::TypeKind::ComplexType:
        if (value.isScalar()) return value.toScalar().toComplexDouble();
        break;
      case c10::TypeKind::BoolType:
        if (value.isInt()) return value.toInt() != 0;
        break;
      case c10::TypeKind::GeneratorType:
        if (value.isNone()) return at::Generator();
        break;
      default:
        break;
    }
    return checked(value, type);
  }

  const InputsDescription& description_;
  at::Device device_;
  std::map<std::pair<int64_t, int64_t>, MadeTensor> made_;  ///< by place and item
  std::vector<torch::jit::Stack> outputs_;                  ///< of each step
  std::map<int64_t, at::Generator> generators_;
};

}  // namespace

int64_t input_bytes(const InputsDescription& description) {
  int64_t alone = 0;
  std::map<std::pair<int64_t, at::ScalarType>, int64_t> shared;
  for (const auto& value : description.arguments) {
    for_each_described(value, [&](const TensorDescription& tensor, int64_t) {
      check_tensor(tensor);
      const int64_t bytes = storage_bytes(tensor);
      if (shared_key(tensor)) {
        int64_t& most = shared[{tensor.storage, tensor.dtype}];
        most = std::max(most, bytes);
      } else {
        alone = multiply_add(1, alone, bytes);
      }
    });
  }
  for (const auto& [key, bytes] : shared) alone = multiply_add(1, alone, bytes);
  return alone;
}

Inputs make_inputs(const c10::OperatorHandle& op,
                   const InputsDescription& description,
                   at::Device device) {
  const c10::InferenceMode no_inference(false);  // inference tensors cannot take part in autograd
  const at::NoGradGuard no_grad;
  return InputMaker(description, device).make(op);
}

}  // namespace opreplay
