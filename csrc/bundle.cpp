// SPDX-License-Identifier: MIT
#include "opreplay/bundle.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace opreplay {
namespace {

constexpr uint32_t kFormat = 1;
constexpr char kMagic[16] = "opreplay-bundle";

struct Header {
  char magic[16];
  uint32_t format;
  uint32_t crc;
  uint64_t length;
};
static_assert(sizeof(Header) == 32 && std::endian::native == std::endian::little);

/// CRC-32C (Castagnoli), reflected, as in RFC 3720.
uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
      made[byte] = value;
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

/// The bytes behind the header of a file, checked.
std::vector<char> read_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.good(), path, ": ", std::strerror(errno));
  Header header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  const std::string again = "; write it with: opreplay bundle PLAN -o " + path;
  TORCH_CHECK_VALUE(
      file.gcount() == sizeof(header) && std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0,
      path,
      ": is no opreplay bundle",
      again);
  TORCH_CHECK_VALUE(header.format == kFormat,
                    path,
                    ": has bundle format ",
                    header.format,
                    ", this opreplay reads format ",
                    kFormat,
                    again);
  std::vector<char> content((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  TORCH_CHECK_VALUE(content.size() == header.length,
                    path,
                    ": has ",
                    content.size(),
                    " bytes behind its header, which promises ",
                    header.length,
                    again);
  TORCH_CHECK_VALUE(crc32c({content.data(), content.size()}) == header.crc,
                    path,
                    ": is damaged, its checksum differs",
                    again);
  return content;
}

/// A value of the file with its place, so that an error can name it.
class Node {
 public:
  Node(c10::IValue value, std::string place) : value_(std::move(value)), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& expected) const {
    C10_THROW_ERROR(ValueError, place_ + ": expected " + expected + ", got " + value_.tagKind());
  }

  [[nodiscard]] Node field(const char* name) const {
    if (!value_.isGenericDict()) fail("a dict");
    const auto fields = value_.toGenericDict();
    const auto found = fields.find(c10::IValue(std::string(name)));
    if (found == fields.end()) fail(std::string("a field '") + name + "'");
    return {found->value(), place_ + "." + name};
  }

  [[nodiscard]] std::vector<Node> elements() const {
    std::vector<Node> nodes;
    if (value_.isTuple()) {
      for (const auto& one : value_.toTupleRef().elements()) nodes.push_back(at(one, nodes.size()));
    } else if (value_.isList()) {
      for (const auto& one : value_.toListRef()) nodes.push_back(at(one, nodes.size()));
    } else {
      fail("a list");
    }
    return nodes;
  }

  template <class Read>
  [[nodiscard]] auto each(const Read& read) const {
    std::vector<decltype(read(*this))> made;
    for (const Node& element : elements()) made.push_back(read(element));
    return made;
  }

  /// torch reads pickled integers of 32 bits alone; longer ones are ("integer", text).
  [[nodiscard]] int64_t integer() const {
    if (value_.isInt()) return value_.toInt();
    if (!value_.isTuple() || value_.toTupleRef().elements().size() != 2) fail("an integer");
    const std::string digits = elements()[1].text();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("an integer");
    return number;
  }
  [[nodiscard]] bool flag() const {
    if (!value_.isBool()) fail("a bool");
    return value_.toBool();
  }
  [[nodiscard]] double number() const {
    if (!value_.isDouble()) fail("a float");
    return value_.toDouble();
  }
  [[nodiscard]] std::string text() const {
    if (!value_.isString()) fail("text");
    return value_.toStringRef();
  }
  [[nodiscard]] at::Tensor tensor() const {
    if (!value_.isTensor()) fail("a tensor");
    return value_.toTensor();
  }
  [[nodiscard]] const c10::IValue& value() const noexcept { return value_; }

 private:
  [[nodiscard]] Node at(const c10::IValue& element, std::size_t index) const {
    return {element, place_ + "[" + std::to_string(index) + "]"};
  }

  c10::IValue value_;
  std::string place_;
};

/// The position of a name in a list of the names that a field accepts.
template <std::size_t N>
std::size_t choice(const Node& node, const std::array<const char*, N>& names) {
  const std::string text = node.text();
  std::string accepted;
  for (std::size_t i = 0; i < N; ++i) {
    if (text == names[i]) return i;
    accepted += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  node.fail("one of " + accepted + ", not '" + text + "',");
}

at::ScalarType dtype(const Node& node) {
  const std::string name = node.text();
  for (int8_t type = 0; type < static_cast<int8_t>(at::ScalarType::NumOptions); ++type) {
    const auto candidate = static_cast<at::ScalarType>(type);
    if (candidate != at::ScalarType::Undefined && c10::getDtypeNames(candidate).first == name) {
      return candidate;
    }
  }
  node.fail("a dtype that this torch has, not '" + name + "',");
}

TensorDescription tensor(const std::vector<Node>& parts) {
  const auto integers = [](const Node& list) {
    return list.each([](const Node& n) { return n.integer(); });
  };
  TensorDescription made;
  made.dtype = dtype(parts[1]);
  made.sizes = integers(parts[2]);
  made.strides = integers(parts[3]);
  made.storage_numel = parts[4].integer();
  made.storage = parts[5].integer();
  made.storage_offset = parts[6].integer();
  made.on_cpu = parts[7].flag();
  made.fill = static_cast<Fill>(choice(parts[8], std::array{"none", "random", "integers"}));
  made.low = parts[9].integer();
  made.high = parts[10].integer();
  return made;
}

ValueDescription value(const Node& node);

/// Values that a pickle of plain types cannot say are tuples that begin with a word.
ValueDescription tagged(const Node& node) {
  static constexpr std::array kTags{"tensor",
                                    "argument",
                                    "memory",
                                    "constant",
                                    "output",
                                    "device",
                                    "generator",
                                    "dtype",
                                    "layout",
                                    "memory_format",
                                    "complex",
                                    "integer"};
  static constexpr std::array<std::size_t, kTags.size()> kParts{
      11, 3, 3, 2, 4, 2, 4, 2, 2, 2, 3, 2};
  static constexpr std::array kLayouts{"strided",
                                       "sparse_coo",
                                       "sparse_csr",
                                       "_mkldnn",
                                       "sparse_csc",
                                       "sparse_bsr",
                                       "sparse_bsc",
                                       "jagged"};
  static constexpr std::array kFormats{
      "contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};
  const std::vector<Node> parts = node.elements();
  if (parts.empty()) node.fail("a word and its values");
  const std::size_t tag = choice(parts[0], kTags);
  if (parts.size() != kParts[tag]) node.fail(std::to_string(kParts[tag]) + " values");
  switch (tag) {
    case 0:
      return tensor(parts);
    case 1:
    case 2:
      return Reference{tag == 1 ? Reference::Kind::kArgument : Reference::Kind::kMemory,
                       parts[1].integer(),
                       0,
                       parts[2].integer()};
    case 3:
      return Reference{Reference::Kind::kConstant, parts[1].integer()};
    case 4:
      return Reference{
          Reference::Kind::kOutput, parts[1].integer(), parts[2].integer(), parts[3].integer()};
    case 5:
      if (choice(parts[1], std::array{"run", "cpu"}) == 0) return RunDevice{};
      return c10::IValue(at::Device(at::kCPU));
    case 6:
      return GeneratorDescription{
          parts[1].integer(), static_cast<uint64_t>(parts[2].integer()), parts[3].flag()};
    case 7:
      return c10::IValue(static_cast<int64_t>(dtype(parts[1])));
    case 8:
      return c10::IValue(static_cast<int64_t>(choice(parts[1], kLayouts)));
    case 9:
      return c10::IValue(static_cast<int64_t>(choice(parts[1], kFormats)));
    case 11:
      return c10::IValue(node.integer());
    default:
      return c10::IValue(c10::complex<double>(parts[1].number(), parts[2].number()));
  }
}

ValueDescription value(const Node& node) {
  const c10::IValue& plain = node.value();
  if (plain.isTuple()) return tagged(node);
  if (plain.isList()) {
    auto list = std::make_shared<ListDescription>();
    list->elements = node.each(value);
    return list;
  }
  if (plain.isNone() || plain.isScalar() || plain.isString()) return plain;
  node.fail("a value of an argument");
}

Reference reference(const Node& node) {
  const ValueDescription found = value(node);
  if (const auto* made = std::get_if<Reference>(&found)) return *made;
  node.fail("a reference to an output");
}

Step step(const Node& node) {
  return {
      node.field("op").text(), node.field("overload").text(), node.field("arguments").each(value)};
}

Produced produced(const Node& node) {
  return {node.field("argument").integer(),
          reference(node.field("made")),
          node.field("release").text()};
}

BundledCall call(const Node& node,
                 std::string place,
                 const std::vector<at::Tensor>& constants,
                 uint64_t seed) {
  const auto text = [](const Node& one) { return one.text(); };
  BundledCall made;
  made.op = node.field("op").text();
  made.overload = node.field("overload").text();
  made.schema = node.field("schema").text();
  made.signature = node.field("signature").text();
  made.mode =
      static_cast<GradMode>(choice(node.field("mode"), std::array{"inference", "no_grad", "grad"}));
  made.count = node.field("count").integer();
  made.recorded_host_us = node.field("recorded_host_us").number();
  const Node device = node.field("recorded_device_us");
  if (!device.value().isNone()) made.recorded_device_us = device.number();
  made.libraries = node.field("libraries").each(text);
  made.recipe = node.field("recipe").text();
  made.assumptions = node.field("assumptions").each(text);
  made.inputs.arguments = node.field("arguments").each(value);
  made.inputs.steps = node.field("steps").each(step);
  made.inputs.produced = node.field("produced").each(produced);
  made.inputs.constants = constants;
  made.inputs.seed = seed;
  made.place = std::move(place) + " (" + made.op + ")";
  return made;
}

/// Adds the place of a call to what is thrown inside it.
template <class Body>
auto within(const std::string& place, const Body& body) {
  try {
    return body();
  } catch (c10::Error& error) {
    error.add_context(place);
    throw;
  }
}

/// Has autograd record the call; a leaf that is written to may not require a gradient.
void require_gradients(const Call& call) {
  const auto require = [](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_floating_point() || tensor.is_complex()) tensor.set_requires_grad(true);
  };
  for (std::size_t i = 0; i < call.arguments().size(); ++i) {
    const auto* alias = call.op().schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) continue;
    const c10::IValue& value = call.arguments()[i];
    if (!value.isList()) {
      require(value);
      continue;
    }
    for (const c10::IValue& element : value.toListRef()) require(element);
  }
}

}  // namespace

int64_t BundledCall::bytes() const {
  return within(place, [&] { return input_bytes(inputs); });
}

Call BundledCall::prepare(at::Device device) const {
  return within(place, [&] {
    const auto found = c10::Dispatcher::singleton().findSchema({op, overload});
    std::string wanted;
    for (const auto& library : libraries) wanted += (wanted.empty() ? " " : ", ") + library;
    TORCH_CHECK_VALUE(found.has_value(),
                      "no library in this process registers the operator; load the one that does "
                      "first (load_library)",
                      wanted.empty() ? "" : ", here",
                      wanted);
    const std::string here = c10::toString(found->schema());
    TORCH_CHECK_VALUE(here == schema,
                      "the schema differs: the bundle has ",
                      schema,
                      ", this process ",
                      here,
                      "; write the bundle again with this version of the library");
    Call made(*found, make_inputs(*found, inputs, device).arguments);
    if (mode == GradMode::kGrad) require_gradients(made);
    return made;
  });
}

Bundle::Bundle(std::vector<BundledCall> calls)
    : calls_(std::make_shared<const std::vector<BundledCall>>(std::move(calls))) {}

const BundledCall& Bundle::call(std::size_t index) const {
  TORCH_CHECK_INDEX(index < size(), "there is no call ", index, ", the bundle has ", size());
  return (*calls_)[index];
}

Bundle load_bundle(const std::string& path) {
  const std::vector<char> content = read_content(path);
  c10::IValue root;
  try {
    root = torch::jit::pickle_load(content);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false,
                      path,
                      ": torch cannot read what is behind the header: ",
                      error.what_without_backtrace());
  }
  const Node top(root, path);
  const auto constants = top.field("constants").each([](const Node& one) { return one.tensor(); });
  const auto seed = static_cast<uint64_t>(top.field("seed").integer());
  std::vector<BundledCall> calls;
  for (const Node& node : top.field("calls").elements()) {
    calls.push_back(call(node, path + ": call " + std::to_string(calls.size()), constants, seed));
  }
  return Bundle(std::move(calls));
}

void write_bundle(const std::string& path, std::string_view content) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.format = kFormat;
  header.crc = crc32c(content);
  header.length = content.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  TORCH_CHECK_VALUE(file.good(), path, ": cannot be written: ", std::strerror(errno));
}

void load_library(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  TORCH_CHECK_VALUE(handle != nullptr, "cannot load the library: ", dlerror());
}

}  // namespace opreplay
