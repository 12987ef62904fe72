// SPDX-License-Identifier: MIT
// Python bindings: registers, holds no logic but the conversion of values.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/ScalarOps.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "opreplay/bundle.h"
#include "opreplay/call.h"
#include "opreplay/device_timing.h"
#include "opreplay/graph.h"
#include "opreplay/operator.h"
#include "opreplay/random.h"
#include "opreplay/timing.h"
#include "value_recorder.h"

namespace py = pybind11;

namespace opreplay {
namespace {

/// One argument of a schema, taken apart: what remains of its type without optional and list.
struct Parameter {
  explicit Parameter(const c10::Argument& argument)
      : name(argument.name()),
        type(argument.real_type()->str()),
        written(argument.alias_info() != nullptr && argument.alias_info()->isWrite()),
        output(argument.is_out()),
        default_value(argument.default_value()) {
    c10::TypePtr rest = argument.real_type();
    if (auto inner = rest->cast<c10::OptionalType>()) {
      optional = true;
      rest = inner->getElementType();
    }
    if (auto list = rest->cast<c10::ListType>()) {
      is_list = true;
      rest = list->getElementType();
      if (auto inner = rest->cast<c10::OptionalType>()) {
        optional_elements = true;
        rest = inner->getElementType();
      }
    }
    kind = rest->str();
  }

  std::string name;
  std::string type;
  std::string kind;
  bool optional = false;
  bool is_list = false;
  bool optional_elements = false;
  bool written;
  bool output;
  std::optional<c10::IValue> default_value;
};

GradMode grad_mode(const std::string& name) {
  if (name == "inference") return GradMode::kInference;
  if (name == "no_grad") return GradMode::kNoGrad;
  if (name == "grad") return GradMode::kGrad;
  throw py::value_error("mode must be inference, no_grad or grad, got " + name);
}

std::string grad_mode_name(GradMode mode) {
  return mode == GradMode::kInference ? "inference"
         : mode == GradMode::kNoGrad  ? "no_grad"
                                      : "grad";
}

/// A Python number where the schema wants a tensor: a wrapped number, as torch.add(x, 2) makes it.
at::Tensor wrapped_number(const py::handle& number) {
  c10::Scalar scalar;
  if (py::isinstance<py::bool_>(number)) {
    scalar = number.cast<bool>();
  } else if (py::isinstance<py::int_>(number)) {
    scalar = number.cast<int64_t>();
  } else if (py::isinstance<py::float_>(number)) {
    scalar = number.cast<double>();
  } else {
    scalar = number.cast<c10::complex<double>>();
  }
  at::Tensor tensor = c10::scalar_to_tensor(scalar);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool is_number(const py::handle& value) {
  return py::isinstance<py::int_>(value) || py::isinstance<py::float_>(value) ||
         PyComplex_Check(value.ptr());
}

Call make_call(const c10::OperatorHandle& op, const py::sequence& values) {
  const auto& parameters = op.schema().arguments();
  std::vector<c10::IValue> arguments;
  arguments.reserve(values.size());
  for (std::size_t i = 0; i < values.size() && i < parameters.size(); ++i) {
    const c10::TypePtr& type = parameters[i].type();
    const py::object value = values[i];
    if (type->kind() == c10::TypeKind::TensorType && is_number(value)) {
      arguments.emplace_back(wrapped_number(value));
    } else {
      arguments.push_back(torch::jit::toIValue(value, type, parameters[i].N()));
    }
  }
  return Call(op, std::move(arguments));
}

py::list to_python(const std::vector<c10::IValue>& values) {
  py::list result;
  for (const c10::IValue& value : values) result.append(torch::jit::toPyObject(value));
  return result;
}

py::list run(const Call& call, const std::string& mode) {
  torch::jit::Stack outputs;
  {
    const GradModeGuard guard(grad_mode(mode));
    const py::gil_scoped_release release;
    outputs = call.run();
  }
  return to_python(outputs);
}

Samples time_python(const py::function& function, const TimingPlan& plan) {
  const auto issue = [&](int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      PyObject* result = PyObject_CallNoArgs(function.ptr());
      if (result == nullptr) throw py::error_already_set();
      Py_DECREF(result);
    }
  };
  const GradModeGuard guard(plan.mode);
  return measure(issue, [] {}, plan);
}

std::vector<Call> copied(const std::vector<Call*>& calls) {
  std::vector<Call> copies;
  for (const Call* call : calls) copies.push_back(*call);
  return copies;
}

Samples time_rotated_calls(const std::vector<Call*>& calls,
                           const TimingPlan& plan,
                           const std::optional<at::Tensor>& evict) {
  std::vector<Call> turn = copied(calls);
  return time_rotated(turn, plan, evict.value_or(at::Tensor()));
}

Cold cold_of(const std::string& name) {
  if (name == "off") return Cold::kOff;
  if (name == "all") return Cold::kAll;
  if (name == "weights") return Cold::kWeights;
  throw py::value_error("cold must be all, weights or off, got " + name);
}

DeviceTimes time_on_device(DeviceTimer& timer,
                           const std::vector<Call*>& calls,
                           const TimingPlan& plan,
                           const std::string& cold) {
  std::vector<Call> unit = copied(calls);
  const Cold which = cold_of(cold);
  const py::gil_scoped_release release;
  return timer.time(unit, plan, which);
}

std::unique_ptr<Graph> make_graph(const std::vector<Call*>& calls,
                                  const std::string& device,
                                  int64_t times,
                                  const std::string& mode) {
  std::vector<Call> captured = copied(calls);
  const GradMode grad = grad_mode(mode);
  const py::gil_scoped_release release;
  return std::make_unique<Graph>(std::move(captured), c10::Device(device), times, grad);
}

/// Gives errors of torch and of Python operators the Python type and text that torch gives them.
void translate_torch_errors(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  } catch (const python_error&) {
    torch::translate_exception_to_python(error);
  }
}

void bind_operators(py::module_& module) {
  py::class_<Parameter>(module, "Parameter")
      .def_readonly("name", &Parameter::name)
      .def_readonly("type", &Parameter::type)
      .def_readonly("kind", &Parameter::kind)
      .def_readonly("optional", &Parameter::optional)
      .def_readonly("is_list", &Parameter::is_list)
      .def_readonly("optional_elements", &Parameter::optional_elements)
      .def_readonly("written", &Parameter::written)
      .def_readonly("output", &Parameter::output)
      .def_property_readonly("has_default",
                             [](const Parameter& p) { return p.default_value.has_value(); })
      .def_property_readonly("default", [](const Parameter& p) -> py::object {
        return p.default_value ? torch::jit::toPyObject(*p.default_value) : py::none();
      });

  // Local: torch binds this class too, which counts where both use one version of pybind11.
  py::class_<c10::OperatorHandle>(module, "Operator", py::module_local())
      .def_property_readonly("name",
                             [](const c10::OperatorHandle& op) { return op.operator_name().name; })
      .def_property_readonly(
          "overload",
          [](const c10::OperatorHandle& op) { return op.operator_name().overload_name; })
      .def_property_readonly(
          "schema", [](const c10::OperatorHandle& op) { return c10::toString(op.schema()); })
      .def_property_readonly("parameters",
                             [](const c10::OperatorHandle& op) {
                               const auto& arguments = op.schema().arguments();
                               return std::vector<Parameter>(arguments.begin(), arguments.end());
                             })
      .def(
          "has_kernel",
          [](const c10::OperatorHandle& op, const std::string& key) {
            return op.hasComputedKernelForDispatchKey(c10::parseDispatchKey(key));
          },
          py::arg("dispatch_key"))
      .def(
          "registers",
          [](const c10::OperatorHandle& op, const std::string& key) {
            return op.hasKernelForDispatchKey(c10::parseDispatchKey(key));
          },
          py::arg("dispatch_key"));

  py::class_<OperatorIndex>(module, "OperatorIndex")
      .def(py::init<>())
      .def("overloads", &OperatorIndex::overloads, py::arg("name"))
      .def("refresh", &OperatorIndex::refresh)
      .def("__len__", &OperatorIndex::size);
}

void bind_graph(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<Graph>(module, "Graph")
      .def(py::init(&make_graph),
           py::arg("calls"),
           py::arg("device"),
           py::arg("times") = 1,
           py::arg("mode") = "inference")
      .def("replay", &Graph::replay, py::arg("n") = 1, released())
      .def("synchronize", &Graph::synchronize, released())
      .def("outputs", [](const Graph& graph) { return to_python(graph.outputs()); })
      .def_property_readonly("calls", &Graph::calls)
      .def_property_readonly("nodes", &Graph::nodes);
  module.def(
      "has_device_api",
      [](const std::string& device) {
        return find_device_api(c10::Device(device).type()) != nullptr;
      },
      py::arg("device"));
  module.def(
      "device_cache_bytes",
      [](const std::string& name) -> std::optional<int64_t> {
        c10::Device device(name);
        const DeviceApi* api = find_device_api(device.type());
        if (api == nullptr) return std::nullopt;
        if (!device.has_index()) {
          device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
        }
        return api->cache_bytes(device);
      },
      py::arg("device"));
}

void bind_timing(py::module_& module) {
  py::class_<TimingPlan>(module, "TimingPlan")
      .def(py::init<>())
      .def_readwrite("warmup_ns", &TimingPlan::warmup_ns)
      .def_readwrite("limit_ns", &TimingPlan::limit_ns)
      .def_readwrite("min_samples", &TimingPlan::min_samples)
      .def_readwrite("max_samples", &TimingPlan::max_samples)
      .def_readwrite("relative_error", &TimingPlan::relative_error)
      .def_readwrite("batch_ns", &TimingPlan::batch_ns)
      .def_readwrite("max_batch", &TimingPlan::max_batch)
      .def_property(
          "mode",
          [](const TimingPlan& plan) { return grad_mode_name(plan.mode); },
          [](TimingPlan& plan, const std::string& name) { plan.mode = grad_mode(name); });

  py::class_<Samples>(module, "Samples")
      .def_readonly("ns", &Samples::ns)
      .def_readonly("batch", &Samples::batch)
      .def_readonly("discarded", &Samples::discarded)
      .def_readonly("stop_reason", &Samples::stop_reason)
      .def_readonly("route", &Samples::route)
      .def_readonly("floor_ns", &Samples::floor_ns);

  py::class_<DeviceTimes>(module, "DeviceTimes")
      .def_readonly("host", &DeviceTimes::host)
      .def_readonly("hot", &DeviceTimes::hot)
      .def_readonly("cold", &DeviceTimes::cold)
      .def_readonly("latency", &DeviceTimes::latency)
      .def_readonly("notes", &DeviceTimes::notes);

  py::class_<DeviceTimer>(module, "DeviceTimer")
      .def(py::init([](const std::string& device) { return DeviceTimer(c10::Device(device)); }),
           py::arg("device"))
      .def("time", &time_on_device, py::arg("calls"), py::arg("plan"), py::arg("cold") = "all")
      .def_property_readonly("cache_bytes", &DeviceTimer::cache_bytes);

  using released = py::call_guard<py::gil_scoped_release>;
  module.def("time_call", &time_call, py::arg("call"), py::arg("plan"), released());
  module.def("time_rotated",
             &time_rotated_calls,
             py::arg("calls"),
             py::arg("plan"),
             py::arg("evict"),
             released());
  module.def("time_python", &time_python, py::arg("fn"), py::arg("plan"));
  module.def("empty_call", &empty_call, py::arg("arguments"));
  module.def("timer_ns", &timer_ns);
}

void bind_value_recorder(py::module_& module) {
  py::class_<KeptTensor>(module, "KeptTensor")
      .def_readonly("type", &KeptTensor::type)
      .def_readonly("sizes", &KeptTensor::sizes)
      .def_readonly("values", &KeptTensor::values);

  py::class_<KeptArgument>(module, "KeptArgument")
      .def_readonly("thread", &KeptArgument::thread)
      .def_readonly("op", &KeptArgument::op)
      .def_readonly("occurrence", &KeptArgument::occurrence)
      .def_readonly("place", &KeptArgument::place)
      .def_readonly("is_list", &KeptArgument::is_list)
      .def_readonly("tensors", &KeptArgument::tensors);

  module.def("start_keeping_values", &start_keeping_values, py::arg("max_elements"));
  module.def("stop_keeping_values", &stop_keeping_values);
}

void bind_bundle(py::module_& module) {
  py::class_<Bundle>(module, "Bundle")
      .def(py::init(&load_bundle), py::arg("path"))
      .def("__len__", &Bundle::size)
      .def(
          "prepare",
          [](const Bundle& bundle, std::size_t index, at::Device device) {
            return bundle.call(index).prepare(device);
          },
          py::arg("index"),
          py::arg("device"));
  module.def(
      "write_bundle",
      [](const std::string& path, const py::bytes& content) {
        write_bundle(path, static_cast<std::string_view>(content));
      },
      py::arg("path"),
      py::arg("content"));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The compiled part of opreplay";
  module.attr("build_torch_version") = OPREPLAY_TORCH_VERSION;
  py::register_local_exception_translator(&translate_torch_errors);
  bind_operators(module);

  py::class_<Call>(module, "Call")
      .def(py::init(&make_call), py::arg("operator"), py::arg("arguments"))
      .def("run", &run, py::arg("mode") = "inference")
      .def("arguments", [](const Call& call) { return to_python(call.arguments()); })
      .def(
          "copies",
          [](const Call& call, int64_t count, const std::optional<at::Tensor>& arena) {
            return call.copies(count, arena.value_or(at::Tensor()));
          },
          py::arg("count"),
          py::arg("arena") = py::none())
      .def_property_readonly("argument_bytes", &Call::argument_bytes)
      .def_property_readonly("updated_bytes", &Call::updated_bytes)
      .def_property_readonly("updates_arguments", &Call::updates_arguments);

  bind_timing(module);
  bind_graph(module);
  bind_value_recorder(module);
  bind_bundle(module);
  module.attr("RESTORE_LIMIT") = kRestoreLimit;
  module.attr("MAX_EMPTY_ARGUMENTS") = kMaxEmptyArguments;
  module.def("fill_random_",
             &fill_random,
             py::arg("tensor"),
             py::arg("seed"),
             py::arg("stream") = 0,
             py::call_guard<py::gil_scoped_release>());
  module.def("fill_random_integers_",
             &fill_random_integers,
             py::arg("tensor"),
             py::arg("low"),
             py::arg("high"),
             py::arg("seed"),
             py::arg("stream") = 0,
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace opreplay
