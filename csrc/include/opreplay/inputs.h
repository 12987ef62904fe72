// SPDX-License-Identifier: MIT
//
// Descriptions of arguments, and the tensors made of them. Nothing here depends on a file: a
// program may describe a call itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "opreplay/export.h"

namespace opreplay {

/// What the storage of a tensor is filled with before anything reads it.
enum class Fill {
  kNone,      ///< whatever the allocation left there
  kRandom,    ///< fill_random(); every bit pattern for quantized dtypes and dtypes of bits
  kIntegers,  ///< fill_random_integers() in [low, high)
};

/// A tensor to be made.
struct TensorDescription {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< [elements]; may be zero or overlap
  int64_t storage_numel = 0;     ///< elements that the storage holds
  int64_t storage = -1;          ///< number of a storage that tensors of the call share, or -1
  int64_t storage_offset = 0;    ///< [elements]
  bool on_cpu = false;           ///< on the CPU whatever the device of the call
  Fill fill = Fill::kNone;
  int64_t low = 0;
  int64_t high = 0;
};

/// A generator of random numbers; the same number within a call is the same generator.
struct GeneratorDescription {
  int64_t number = 0;
  uint64_t seed = 0;
  bool on_cpu = false;
};

/// The device of the call, where an operator asks for a device.
struct RunDevice {};

/// A value that is there already.
struct Reference {
  enum class Kind {
    kArgument,  ///< the tensor argument `index`, or its element `item`
    kMemory,    ///< the whole storage of that tensor, in one dimension
    kConstant,  ///< the stored tensor `index`
    kOutput,    ///< output `output` of step `index`, or the element `item` of that list
  };
  Kind kind = Kind::kArgument;
  int64_t index = 0;
  int64_t output = 0;
  int64_t item = -1;
};

struct ListDescription;

/// One argument of an operator. An IValue stands for itself: a number, text, a dtype, or none.
using ValueDescription = std::variant<c10::IValue,
                                      TensorDescription,
                                      GeneratorDescription,
                                      RunDevice,
                                      Reference,
                                      std::shared_ptr<const ListDescription>>;

struct ListDescription {
  std::vector<ValueDescription> elements;
};

/// An operator that is run to give arguments their values.
struct Step {
  std::string op;
  std::string overload;
  std::vector<ValueDescription> arguments;  ///< in schema order
};

/// An argument that an operator of this process makes: a handle, or metadata that must fit the
/// process. An integer becomes an int64 tensor without dimensions.
struct Produced {
  int64_t argument = 0;
  Reference made;
  std::string release;  ///< operator that takes the integer once nothing uses it any more; or empty
};

/// All arguments of a call: tensors are allocated, steps run in turn, tensors that they leave are
/// filled.
struct InputsDescription {
  std::vector<ValueDescription> arguments;  ///< in schema order
  std::vector<Step> steps;
  std::vector<Produced> produced;
  std::vector<at::Tensor> constants;
  uint64_t seed = 0;
};

/// The arguments of a call.
struct Inputs {
  std::vector<c10::IValue> arguments;  ///< in schema order
  int64_t bytes = 0;                   ///< of all storages that were allocated
};

/// Bytes that the storages of a description take. Throws c10::ValueError if a tensor is impossible.
[[nodiscard]] OPREPLAY_API int64_t input_bytes(const InputsDescription& description);

/// Makes the arguments of an operator on a device. Element e of the tensors at place p is filled
/// from random stream (p << 40) | (e << 8) of the description's seed.
///
/// Throws c10::ValueError or c10::TypeError, naming the argument or the step, where a value does
/// not fit the schema.
[[nodiscard]] OPREPLAY_API Inputs make_inputs(const c10::OperatorHandle& op,
                                              const InputsDescription& description,
                                              at::Device device);

}  // namespace opreplay
