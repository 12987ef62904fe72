// SPDX-License-Identifier: MIT
//
// opreplay-run: replays the calls of a bundle, with no Python in the process.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "opreplay/bundle.h"
#include "opreplay/device_timing.h"
#include "opreplay/graph.h"
#include "opreplay/timing.h"

namespace {

constexpr const char* kUsage =
    "usage: opreplay-run BUNDLE [--call N] [--mode once|loop|graph] [--iterations N]\n"
    "                    [--device DEV] [--time SECONDS] [--json FILE] [--library SO]\n"
    "\n"
    "Replays the calls of a bundle, which 'opreplay bundle' writes.\n"
    "\n"
    "  --call N        only the call with this number, from 0; repeatable\n"
    "  --mode MODE     once: one call; loop: a tight loop, timed; graph: one captured graph,\n"
    "                  launched (default: loop)\n"
    "  --iterations N  exactly N calls, or launches of the graph, and nothing else: no warm-up\n"
    "                  and no statistics, for a profiler around the process\n"
    "  --device DEV    cpu, cuda:0, ... (default: cpu)\n"
    "  --time SECONDS  limit for warm-up and samples of one call (default: 0.3)\n"
    "  --json FILE     write the results\n"
    "  --library SO    load it first, because it registers operators; repeatable\n";

struct Options {
  std::string bundle;
  std::vector<std::size_t> calls;
  std::string mode = "loop";
  std::optional<int64_t> iterations;
  std::string device = "cpu";
  double time_s = 0.3;
  std::string json;
  std::vector<std::string> libraries;
};

template <class Number>
Number number(const std::string& option, const std::string& text, Number least) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value >= least,
                    option,
                    " takes a number from ",
                    least,
                    ", got '",
                    text,
                    "'");
  return value;
}

Options read_options(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.rfind("--", 0) != 0) {
      TORCH_CHECK_VALUE(options.bundle.empty(), "one bundle at a time, got ", word, " too");
      options.bundle = word;
      continue;
    }
    TORCH_CHECK_VALUE(i + 1 < words.size(), word, " takes a value");
    const std::string& value = words[++i];
    if (word == "--call") {
      options.calls.push_back(number<std::size_t>(word, value, 0));
    } else if (word == "--mode") {
      TORCH_CHECK_VALUE(value == "once" || value == "loop" || value == "graph",
                        "--mode is once, loop or graph, got '",
                        value,
                        "'");
      options.mode = value;
    } else if (word == "--iterations") {
      options.iterations = number<int64_t>(word, value, 1);
    } else if (word == "--device") {
      options.device = value;
    } else if (word == "--time") {
      options.time_s = number<double>(word, value, 0.001);
    } else if (word == "--json") {
      options.json = value;
    } else if (word == "--library") {
      options.libraries.push_back(value);
    } else {
      TORCH_CHECK_VALUE(false, "there is no option ", word);
    }
  }
  TORCH_CHECK_VALUE(!options.bundle.empty(), "name a bundle");
  return options;
}

/// What one call came to.
struct Result {
  std::size_t number = 0;
  const opreplay::BundledCall* call = nullptr;
  std::optional<opreplay::Samples> samples;
  std::string error;
};

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - std::floor(place)) * (values[high] - values[low]);
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char one : text) {
    if (one == '"' || one == '\\') made += '\\';
    if (static_cast<unsigned char>(one) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(one));
      made += escaped;
    } else {
      made += one;
    }
  }
  return made + "\"";
}

std::string json_of(const std::vector<Result>& results, const Options& options) {
  std::ostringstream out;
  out << "{\"format\": \"opreplay-run/1\", \"bundle\": " << quoted(options.bundle)
      << ", \"device\": " << quoted(options.device) << ", \"mode\": " << quoted(options.mode)
      << ", \"calls\": [";
  for (const Result& result : results) {
    out << (&result == results.data() ? "\n" : ",\n") << "  {\"call\": " << result.number
        << ", \"op\": " << quoted(result.call->op)
        << ", \"overload\": " << quoted(result.call->overload)
        << ", \"signature\": " << quoted(result.call->signature)
        << ", \"status\": " << (result.error.empty() ? "\"ok\"" : "\"failed\"")
        << ", \"detail\": " << quoted(result.error)
        << ", \"recorded_host_us\": " << result.call->recorded_host_us << ", \"timing\": ";
    if (result.samples && !result.samples->ns.empty()) {
      const auto& ns = result.samples->ns;
      out << "{\"median_ns\": " << quantile(ns, 0.5) << ", \"p5_ns\": " << quantile(ns, 0.05)
          << ", \"p95_ns\": " << quantile(ns, 0.95) << ", \"samples\": " << ns.size()
          << ", \"batch\": " << result.samples->batch
          << ", \"route\": " << quoted(result.samples->route)
          << ", \"stop_reason\": " << quoted(result.samples->stop_reason) << "}";
    } else {
      out << "null";
    }
    out << "}";
  }
  out << "\n]}\n";
  return out.str();
}

void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl impl(device.type());
  impl.synchronizeDevice(device.has_index() ? device.index() : impl.getDevice().index());
}

/// Runs one call in the mode asked for; samples come out where it was timed.
std::optional<opreplay::Samples> replay(const opreplay::BundledCall& bundled,
                                        at::Device device,
                                        const Options& options) {
  opreplay::Call call = bundled.prepare(device);
  wait_for(device);
  if (options.mode == "graph") {
    opreplay::Graph graph({call}, device, 1, bundled.mode);
    graph.replay(options.iterations.value_or(1));
    graph.synchronize();
    return std::nullopt;
  }
  if (options.mode == "once" || options.iterations) {
    const opreplay::GradModeGuard guard(bundled.mode);
    call.issue(options.mode == "once" ? 1 : *options.iterations);
    wait_for(device);
    return std::nullopt;
  }
  opreplay::TimingPlan plan;
  plan.mode = bundled.mode;
  plan.limit_ns = static_cast<int64_t>(options.time_s * 1e9);
  plan.relative_error = 0.02;
  return opreplay::time_warm(call, device, plan);
}

int run(const Options& options) {
  for (const auto& library : options.libraries) opreplay::load_library(library);
  const at::Device device(options.device);
  const opreplay::Bundle bundle = opreplay::load_bundle(options.bundle);
  std::vector<std::size_t> chosen = options.calls;
  for (std::size_t i = 0; options.calls.empty() && i < bundle.size(); ++i) chosen.push_back(i);
  if (options.mode == "graph") static_cast<void>(opreplay::device_api(device.type()));
  std::vector<Result> results;
  bool failed = false;
  for (const std::size_t number : chosen) {
    Result result{number, &bundle.call(number), std::nullopt, ""};
    try {
      result.samples = replay(*result.call, device, options);
    } catch (const c10::Error& error) {
      result.error = error.what_without_backtrace();
    } catch (const std::exception& error) {
      result.error = error.what();
    }
    failed = failed || !result.error.empty();
    std::printf("%4zu  %-44s ", number, result.call->op.c_str());
    if (!result.error.empty()) {
      std::printf("failed: %s\n", result.error.c_str());
    } else if (result.samples && !result.samples->ns.empty()) {
      std::printf("%12.3f us\n", quantile(result.samples->ns, 0.5) / 1000);
    } else {
      std::printf("%12s\n", "ok");
    }
    std::fflush(stdout);
    results.push_back(std::move(result));
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << json_of(results, options);
    file.close();
    TORCH_CHECK_VALUE(file.good(), options.json, ": cannot be written");
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  try {
    return run(read_options(arguments));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "opreplay-run: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "opreplay-run: %s\n", error.what());
  }
  return 2;
}
