#include "capstan/profile/module_costs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace capstan::profile {
namespace {

constexpr int kLabelWidth = 70;

double at(const PerPart& values, PassPart part) { return values[static_cast<std::size_t>(part)]; }

std::string milliseconds_text(double seconds) {
  return seconds > 0 ? fmt::format("{:.2f}", seconds * 1e3) : "-";
}

// Of forward.
std::string rate_text(const ModuleCost& module) {
  const double seconds = at(module.seconds, PassPart::forward);
  const double flops = at(module.flops, PassPart::forward);
  return seconds > 0 && flops > 0 ? with_prefix(flops / seconds) : "-";
}

std::string label_of(const ModuleCost& module) {
  const std::string own = module.name.empty() || module.name == module.kind
                              ? module.kind
                              : fmt::format("{}: {}", module.name, module.kind);
  return std::string(2 * static_cast<std::size_t>(module.depth), ' ') + own;
}

std::string line(std::string_view label, const std::string& value) {
  return fmt::format("{:<{}}{}\n", label, kLabelWidth, value);
}

std::string seconds_text(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} us", seconds * 1e6);
}

struct Metric {
  std::string_view name;
  std::function<double(const ModuleCost&)> value;
  std::function<std::string(double)> text;
};

// Sums over the modules of a class, the largest first.
std::string largest(const std::vector<ModuleCost>& modules, int depth, const Metric& metric,
                    int top) {
  std::map<std::string, double> sums;
  for (const ModuleCost& module : modules) {
    if (module.depth == depth) sums[module.kind] += metric.value(module);
  }
  std::vector<std::pair<std::string, double>> sorted(sums.begin(), sums.end());
  std::ranges::stable_sort(sorted,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  sorted.resize(std::min(sorted.size(), static_cast<std::size_t>(top)));
  std::string text;
  for (const auto& [kind, value] : sorted) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, metric.text(value));
  }
  return text;
}

double backward_flops(const ModuleCost& model, const CostFacts& facts) {
  const double seen = at(model.flops, PassPart::recomputed);
  const double recomputed =
      seen > 0 ? seen : facts.recompute_factor * at(model.flops, PassPart::forward);
  return at(model.flops, PassPart::backward) + recomputed;
}

// With the time it took, and the rate that follows.
std::string pass_lines(std::string_view name, double flops, std::optional<double> seconds) {
  if (!seconds || *seconds <= 0) return {};
  std::string text = line(fmt::format("{} latency: ", name), seconds_text(*seconds));
  if (flops > 0) {
    text +=
        line(fmt::format("{} FLOPS per GPU = {} flops per GPU / {} latency: ", name, name, name),
             with_prefix(flops / *seconds, "FLOPS"));
  }
  return text;
}

std::string summary(const ModuleCost& model, const CostFacts& facts) {
  const double forward = at(model.flops, PassPart::forward);
  const double backward = backward_flops(model, facts);
  std::string text = line("world size: ", fmt::format("{}", facts.world_size));
  text += line("data parallel size: ", fmt::format("{}", facts.data_ranks));
  text += line("model parallel size: ", fmt::format("{}", facts.model_ranks));
  if (facts.micro_batch > 0) {
    text += line("batch size per GPU: ", fmt::format("{}", facts.micro_batch));
    text += line("micro-batches per step: ", fmt::format("{}", facts.micro_batches));
  }
  const auto params = static_cast<double>(model.parameters);
  text += line("params per GPU: ", with_prefix(params));
  text +=
      line("params of model = params per GPU * mp_size: ", with_prefix(params * facts.model_ranks));
  text += line("fwd MACs per GPU: ", with_prefix(forward / 2, "MACs"));
  text += line("fwd flops per GPU: ", with_prefix(forward));
  text += line("fwd flops of model = fwd flops per GPU * mp_size: ",
               with_prefix(forward * facts.model_ranks));
  if (at(model.flops, PassPart::backward) > 0) {
    text += line("bwd flops per GPU: ", with_prefix(at(model.flops, PassPart::backward)));
    text += line("recomputed flops per GPU: ",
                 with_prefix(backward - at(model.flops, PassPart::backward)));
  }
  text += pass_lines("fwd", forward, facts.forward_s);
  text += pass_lines("bwd", backward, facts.backward_s);
  if (facts.forward_s && facts.backward_s && backward > 0) {
    text +=
        line("fwd+bwd FLOPS per GPU: ",
             with_prefix((forward + backward) / (*facts.forward_s + *facts.backward_s), "FLOPS"));
  }
  if (facts.update_s) text += line("step latency: ", seconds_text(*facts.update_s));
  if (facts.step_s && *facts.step_s > 0) {
    text += line("iter latency: ", seconds_text(*facts.step_s));
    const auto passes = static_cast<double>(facts.micro_batches);
    text += line("FLOPS per GPU = (fwd + bwd flops) * micro-batches / iter latency: ",
                 with_prefix((forward + backward) * passes / *facts.step_s, "FLOPS"));
    if (facts.micro_batch > 0) {
      const double samples = static_cast<double>(facts.micro_batch * facts.data_ranks) * passes;
      text += line("samples/second: ", fmt::format("{:.2f}", samples / *facts.step_s));
    }
  }
  return text;
}

}  // namespace

std::string with_prefix(double value, std::string_view unit) {
  constexpr std::array<std::pair<double, std::string_view>, 5> kPrefixes = {
      {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}}};
  for (const auto& [size, prefix] : kPrefixes) {
    if (value >= size) return fmt::format("{:.4g} {}{}", value / size, prefix, unit);
  }
  return fmt::format("{:.4g}{}{}", value, unit.empty() ? "" : " ", unit);
}

std::string module_table(const std::vector<ModuleCost>& modules, int depth) {
  std::vector<const ModuleCost*> shown;
  std::size_t width = 6;
  for (const ModuleCost& module : modules) {
    if (depth >= 0 && module.depth > depth) continue;
    shown.push_back(&module);
    width = std::max(width, label_of(module).size());
  }
  constexpr std::string_view kForm =
      "{:<{}}  {:>9}  {:>9}  {:>9}  {:>10}  {:>10}  {:>8}  {:>8}  {:>9}\n";
  std::string text =
      fmt::format(fmt::runtime(kForm), "module", width, "params", "fwd MACs", "fwd flops",
                  "bwd flops", "recomputed", "fwd ms", "bwd ms", "fwd FLOPS");
  for (const ModuleCost* const module : shown) {
    const PerPart& flops = module->flops;
    const double behind =
        at(module->seconds, PassPart::backward) + at(module->seconds, PassPart::recomputed);
    text += fmt::format(
        fmt::runtime(kForm), label_of(*module), width,
        with_prefix(static_cast<double>(module->parameters)),
        with_prefix(at(flops, PassPart::forward) / 2), with_prefix(at(flops, PassPart::forward)),
        with_prefix(at(flops, PassPart::backward)), with_prefix(at(flops, PassPart::recomputed)),
        milliseconds_text(at(module->seconds, PassPart::forward)), milliseconds_text(behind),
        rate_text(*module));
  }
  return text;
}

std::string top_modules(const std::vector<ModuleCost>& modules, const CostsShown& shown) {
  int deepest = 0;
  for (const ModuleCost& module : modules) deepest = std::max(deepest, module.depth);
  if (shown.depth >= 0) deepest = std::min(deepest, shown.depth);
  const auto plain = [](double value) { return with_prefix(value); };
  const std::array<Metric, 3> metrics = {
      {{"params", [](const ModuleCost& m) { return static_cast<double>(m.parameters); }, plain},
       {"MACs", [](const ModuleCost& m) { return at(m.flops, PassPart::forward) / 2; }, plain},
       {"fwd latency", [](const ModuleCost& m) { return at(m.seconds, PassPart::forward); },
        seconds_text}}};
  std::string text;
  for (int depth = 0; depth <= deepest; ++depth) {
    text += fmt::format("depth {}:\n", depth);
    for (const Metric& metric : metrics) {
      text += fmt::format("    {:<11} - {}\n", metric.name,
                          largest(modules, depth, metric, shown.top_modules));
    }
  }
  return text;
}

std::string costs_report(const std::vector<ModuleCost>& modules, const CostFacts& facts,
                         const CostsShown& shown) {
  std::string text = fmt::format(
      "Profile Summary at step {}:\n"
      "Of one rank and one micro-batch. MACs: multiply-accumulate operations; flops: "
      "floating-point\n"
      "operations of matrix products, convolutions and attention; FLOPS: flops per second; fwd, "
      "bwd:\n"
      "forward, backward. Backward and recomputation are counted, not estimated.\n\n",
      facts.step);
  text += summary(modules.front(), facts);
  if (shown.top_modules > 0) {
    text += fmt::format("\nTop {} of the classes of modules, by depth:\n{}", shown.top_modules,
                        top_modules(modules, shown));
  }
  if (shown.detailed) text += "\nEvery module:\n" + module_table(modules, shown.depth);
  return text;
}

}  // namespace capstan::profile
