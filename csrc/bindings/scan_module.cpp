// SPDX-License-Identifier: MIT
// Python bindings of the scanner and what goes with it: an extension of its own, so that reading a
// trace loads no torch.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "nest.h"
#include "scan.h"

namespace py = pybind11;

namespace opreplay {
namespace {

template <typename Number>
py::array_t<Number> array_of(const std::vector<Number>& values) {
  return py::array_t<Number>(static_cast<py::ssize_t>(values.size()), values.data());
}

const char* name_of(ScanStatus status) {
  switch (status) {
    case ScanStatus::kComplete:
      return "complete";
    case ScanStatus::kTruncated:
      return "truncated";
    case ScanStatus::kDamaged:
      return "damaged";
    default:
      return "foreign";
  }
}

void feed(Scanner& scanner, const py::bytes& piece) {
  const std::string_view view(piece);
  py::gil_scoped_release release;
  scanner.feed(view);
}

py::tuple finish(Scanner& scanner) {
  ScanOutcome outcome;
  {
    py::gil_scoped_release release;
    outcome = scanner.finish();
  }
  return py::make_tuple(name_of(outcome.status), outcome.offset, py::bytes(outcome.found));
}

py::tuple table(const Scanner& scanner, size_t lane) {
  const ScanTable& found = scanner.table(lane);
  py::list ids;
  for (const auto& column : found.ids) ids.append(array_of(column));
  return py::make_tuple(array_of(found.start),
                        array_of(found.duration),
                        array_of(found.thread),
                        array_of(found.distinct),
                        ids);
}

/// All cells as one JSON list, and their number.
py::tuple cells(const Scanner& scanner) {
  std::string text = "[";
  for (const std::string& cell : scanner.cells()) {
    if (text.size() > 1) text += ',';
    text += cell;
  }
  return py::make_tuple(py::bytes(text + ']'), scanner.cells().size());
}

/// Names of the examples of a lane, a tuple with what stands for its cells or None, and the number,
/// place and text of those that have another form, or a cell for which None stands.
py::tuple examples(const Scanner& scanner, size_t lane, const py::list& cells) {
  const std::vector<ScanExample>& found = scanner.examples(lane);
  py::list names(found.size());
  py::list lists(found.size());
  py::list others;
  for (size_t number = 0; number < found.size(); ++number) {
    const ScanExample& example = found[number];
    py::object list = py::none();
    bool plain = example.plain;
    if (plain && example.has_lists) {
      py::tuple objects(example.cells.size());
      for (size_t i = 0; i < example.cells.size(); ++i) {
        objects[i] = cells[example.cells[i]];
        plain = plain && !objects[i].is_none();
      }
      list = std::move(objects);
    }
    if (!plain) others.append(py::make_tuple(number, example.offset, py::bytes(example.text)));
    names[number] = py::str(example.name);
    lists[number] = std::move(list);
  }
  return py::make_tuple(names, lists, others);
}

py::list bytes_of(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(py::bytes(text));
  return list;
}

template <typename Number>
using Column = py::array_t<Number, py::array::c_style | py::array::forcecast>;

template <typename Number>
std::span<const Number> span_of(const Column<Number>& column) {
  return {column.data(), static_cast<size_t>(column.size())};
}

py::tuple nest_columns(const Column<int64_t>& thread,
                       const Column<double>& start,
                       const Column<double>& end,
                       double tolerance) {
  if (start.size() != thread.size() || end.size() != thread.size()) {
    throw std::invalid_argument("expected columns of equal length");
  }
  const NestedIntervals found = nest(span_of(thread), span_of(start), span_of(end), tolerance);
  return py::make_tuple(array_of(found.parent), array_of(found.depth), array_of(found.size));
}

using TreeColumns = std::tuple<Column<int64_t>, Column<double>, Column<double>>;

py::array_t<int64_t> innermost_rows(const TreeColumns& intervals,
                                    const Column<int64_t>& parent,
                                    const std::optional<Column<int64_t>>& threads,
                                    const Column<double>& start,
                                    const Column<double>& end) {
  const auto& [thread, starts, ends] = intervals;
  const auto count = thread.size();
  if (starts.size() != count || ends.size() != count || parent.size() != count ||
      end.size() != start.size() || (threads && threads->size() != start.size())) {
    throw std::invalid_argument("expected columns of equal length");
  }
  return array_of(innermost({span_of(thread), span_of(starts), span_of(ends), span_of(parent)},
                            threads ? span_of(*threads) : std::span<const int64_t>{},
                            span_of(start),
                            span_of(end)));
}

/// Sets an attribute of each object, past a class that forbids it, to the next of the values.
void set_each(const py::object& descriptor, const py::list& objects, const py::iterable& values) {
  const auto set = Py_TYPE(descriptor.ptr())->tp_descr_set;
  if (set == nullptr) throw py::type_error("expected the descriptor of a slot");
  auto value = values.begin();
  for (const py::handle object : objects) {
    if (value == values.end()) throw py::value_error("expected a value for each object");
    if (set(descriptor.ptr(), object.ptr(), value->ptr()) != 0) throw py::error_already_set();
    ++value;
  }
}

}  // namespace

PYBIND11_MODULE(_scan, module) {
  module.doc() = "Cuts records out of JSON documents, nests intervals and fills objects.";
  module.def("set_each", &set_each, py::arg("descriptor"), py::arg("objects"), py::arg("values"));
  module.def("nest",
             &nest_columns,
             py::arg("thread"),
             py::arg("start"),
             py::arg("end"),
             py::kw_only(),
             py::arg("tolerance"));
  module.def("innermost",
             &innermost_rows,
             py::arg("intervals"),
             py::arg("parent"),
             py::arg("thread"),
             py::arg("start"),
             py::arg("end"));
  py::class_<Scanner>(module, "Scanner")
      .def(py::init([](const std::string& records_key,
                       const std::string& label_key,
                       const std::pair<std::string, std::string>& phase,
                       const std::string& lane_key,
                       const std::vector<std::pair<std::string, size_t>>& lanes,
                       const std::pair<std::string, std::string>& time_keys,
                       const std::pair<std::string, std::string>& thread_keys,
                       const std::string& fields_key,
                       const std::vector<std::pair<std::string, size_t>>& id_keys,
                       const std::string& name_key,
                       const std::vector<std::string>& list_keys,
                       const std::vector<std::string>& signature_keys) {
             return Scanner({records_key,
                             label_key,
                             phase.first,
                             phase.second,
                             lane_key,
                             lanes,
                             time_keys.first,
                             time_keys.second,
                             thread_keys.first,
                             thread_keys.second,
                             fields_key,
                             id_keys,
                             name_key,
                             list_keys,
                             signature_keys});
           }),
           py::kw_only(),
           py::arg("records_key"),
           py::arg("label_key"),
           py::arg("phase"),
           py::arg("lane_key"),
           py::arg("lanes"),
           py::arg("time_keys"),
           py::arg("thread_keys"),
           py::arg("fields_key"),
           py::arg("id_keys"),
           py::arg("name_key"),
           py::arg("list_keys"),
           py::arg("signature_keys"))
      .def("feed", &feed, py::arg("piece"))
      .def("finish", &finish)
      .def("cells", &cells)
      .def("examples", &examples, py::arg("lane"), py::arg("cells"))
      .def("table", &table, py::arg("lane"))
      .def_property_readonly("threads", [](const Scanner& s) { return bytes_of(s.threads()); })
      .def_property_readonly("keys", [](const Scanner& s) { return bytes_of(s.keys()); })
      .def_property_readonly("label", [](const Scanner& s) { return py::bytes(s.label()); })
      .def_property_readonly("has_records", &Scanner::has_records)
      .def_property_readonly("record_count", &Scanner::record_count);
}

}  // namespace opreplay
