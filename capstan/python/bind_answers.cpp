#include "capstan/python/bind_answers.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "capstan/config/apply.h"
#include "capstan/config/partition_rules.h"
#include "capstan/optim/options.h"
#include "capstan/precision/options.h"
#include "capstan/shard/policy.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using config::Resolved;

shard::Policy policy_of(const Resolved& resolved) {
  return shard::policy_for(resolved.engine.shard);
}

std::optional<std::string> optimizer_kind(const Resolved& resolved) {
  if (!resolved.engine.optimizer) return {};
  return std::string(optim::name(resolved.engine.optimizer->kind));
}

double loss_scale(const Resolved& resolved) {
  const precision::Options& options = resolved.engine.precision;
  return options.scales_loss() ? options.loss_scale.static_scale : 1;
}

void bind_dtypes(ConfigClass& config) {
  using shard::torch_dtype;
  const auto ask = [&](const char* name, auto answer, const char* what) {
    config.def_property_readonly(name, answer, what);
  };
  ask(
      "param_dtype", [](const Resolved& r) { return torch_dtype(config::param_dtype(r.table)); },
      "Of the parameters that are trained, as bf16 and fp16 choose it.");
  ask(
      "reduce_dtype",
      [](const Resolved& r) { return torch_dtype(r.engine.precision.reduce_dtype()); },
      "Of gradients on their way between ranks.");
  ask(
      "autocast_dtype",
      [](const Resolved& r) { return torch_dtype(config::autocast_dtype(r.table)); },
      "Of operations under torch_autocast.");
  ask(
      "casts_inputs", [](const Resolved& r) { return r.engine.precision.cast_inputs; },
      "Whether floating-point inputs become the dtype of the parameters.");
  ask("loss_scale", &loss_scale, "The fixed factor of the loss; 0: dynamic.");
  ask(
      "dynamic_loss_scale", [](const Resolved& r) { return r.engine.precision.scale_is_dynamic(); },
      "Whether the loss scale is found while training.");
}

py::tuple partition_rules(const Resolved& resolved) {
  std::vector<ErrorInfo> problems;  // none: the configuration was checked
  const config::Entry* const entry = resolved.table.find("tensor_parallel.partition_config");
  const config::PartitionRules read = config::read_partition_rules(entry->value, problems);
  constexpr std::array kKinds = {"column", "row", "skip"};
  py::list rules;
  for (const config::PartitionRule& rule : read.rules) {
    rules.append(py::make_tuple(rule.patterns, kKinds[static_cast<std::size_t>(rule.kind)],
                                rule.model_types, rule.blocks, rule.gather_output,
                                rule.sum_gradients));
  }
  return py::make_tuple(rules, read.others_by_default, read.strict);
}

}  // namespace

void bind_loss_scale(py::module_& module) {
  module.attr("LOSS_SCALE_FACTOR") = precision::LossScaleOptions::kFactor;
  module.def(
      "initial_loss_scale",
      [](int power) {
        return precision::LossScaleOptions{.initial_scale_power = power}.initial_scale();
      },
      py::arg("initial_scale_power"), "Where a dynamic loss scale begins.");
}

void bind_answers(ConfigClass& config) {
  bind_dtypes(config);
  const auto ask = [&](const char* name, auto answer, const char* what) {
    config.def_property_readonly(name, answer, what);
  };
  ask(
      "shards_optimizer", [](const Resolved& r) { return policy_of(r).shards_optimizer(); },
      "Whether each rank keeps only its shard of the optimizer's state.");
  ask(
      "shards_gradients",
      [](const Resolved& r) { return shard::stage_shards_gradients(r.engine.shard.stage); },
      "Likewise of the gradients, by its stage: whatever capstan.reduce_schedule makes of it.");
  ask(
      "shards_params", [](const Resolved& r) { return policy_of(r).shards_params(); },
      "Likewise of the parameters, between their uses.");
  ask("optimizer_kind", &optimizer_kind,
      "The update rule that optimizer.type and its parameters choose; None: not one of ours.");
  ask(
      "offloads_optimizer",
      [](const Resolved& r) {
        return config::optimizer_placement(r.table) != store::Placement::device;
      },
      "Whether the keys want the optimizer's state off the device, at whatever stage.");
  ask(
      "may_write_gathered", [](const Resolved& r) { return config::may_write_gathered(r.table); },
      "Whether a write into parameters that are gathered to be read is only warned of.");
  ask("partition_rules", &partition_rules,
      "How layers are split: ([(patterns, kind, model types, blocks, gather output, sum "
      "gradients)], others by default, strict).");
  ask(
      "asks_for_reports", [](const Resolved& r) { return config::asks_for_reports(r.table); },
      "Whether anything is to be said of the run beside warnings.");
}

}  // namespace capstan::python
