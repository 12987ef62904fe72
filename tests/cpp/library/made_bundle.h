// SPDX-License-Identifier: MIT
//
// A bundle as a C++ program can write one: two calls, the second with a step and a stored tensor.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "opreplay/bundle.h"

namespace opreplay::test {

using Fields = std::vector<std::pair<const char*, c10::IValue>>;

inline c10::IValue dict(const Fields& fields) {
  c10::impl::GenericDict made(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : fields) made.insert(std::string(name), value);
  return made;
}

inline c10::IValue list(const std::vector<c10::IValue>& values) {
  c10::impl::GenericList made(c10::AnyType::get());
  for (const auto& value : values) made.push_back(value);
  return made;
}

inline c10::IValue tuple(std::vector<c10::IValue> values) {
  return c10::ivalue::Tuple::create(std::move(values));
}

inline c10::IValue tensor(const std::string& dtype,
                          int64_t rows,
                          int64_t columns,
                          const std::string& fill) {
  return tuple({"tensor",
                dtype,
                list({rows, columns}),
                list({columns, 1}),
                rows * columns,
                -1,
                0,
                false,
                fill,
                0,
                8});
}

inline c10::IValue call(const std::string& op,
                        const std::string& schema,
                        const std::vector<c10::IValue>& arguments,
                        const std::vector<c10::IValue>& steps) {
  return dict({{"op", op},
               {"overload", ""},
               {"schema", schema},
               {"signature", op + "-signature"},
               {"mode", "inference"},
               {"count", 3},
               {"recorded_host_us", 12.5},
               {"recorded_device_us", c10::IValue()},
               {"libraries", list({})},
               {"recipe", ""},
               {"assumptions", list({"a guess"})},
               {"arguments", list(arguments)},
               {"steps", list(steps)},
               {"produced", list({})}});
}

inline c10::IValue made_bundle() {
  const auto copy =
      dict({{"op", "aten::copy_"},
            {"overload", ""},
            {"arguments", list({tuple({"argument", 1, 0}), tuple({"constant", 0}), false})}});
  return dict({{"torch", "any"},
               {"seed", 7},
               {"constants", list({at::tensor({3, 1, 2}, at::kLong).view({1, 3})})},
               {"calls",
                list({call("aten::mm",
                           "aten::mm(Tensor self, Tensor mat2) -> Tensor",
                           {tensor("float32", 2, 3, "random"), tensor("float32", 3, 2, "random")},
                           {}),
                      call("aten::embedding",
                           "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, "
                           "bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
                           {tensor("float32", 8, 4, "random"),
                            tensor("int64", 1, 3, "none"),
                            -1,
                            false,
                            false},
                           {copy})})}});
}

inline void write(const std::string& path, const c10::IValue& content) {
  const std::vector<char> bytes = torch::jit::pickle_save(content);
  write_bundle(path, std::string_view(bytes.data(), bytes.size()));
}

}  // namespace opreplay::test
