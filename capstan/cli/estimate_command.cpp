// capstan estimate: how much memory a model takes, for every stage and placement.
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/estimate/arguments.h"
#include "capstan/cli/estimate/view.h"
#include "capstan/json/writer.h"

namespace capstan::cli {
namespace {

struct EstimateArguments : estimate::Arguments {
  std::optional<int> stage;
  int pipe = 1;
  int tensor = 1;
  int sequence = 1;
  bool recompute = false;
  bool as_json = false;
};

std::vector<capstan::tune::Candidate> weigh_all(const EstimateArguments& arguments,
                                                capstan::tune::Workload work,
                                                const capstan::tune::Machine& machine) {
  if (!arguments.config.empty()) return {capstan::tune::weigh(work, machine)};
  std::vector<capstan::tune::Candidate> rows;
  for (const engine::Options& options : capstan::tune::all_ways(work.options)) {
    if (arguments.stage && *arguments.stage != options.shard.stage) continue;
    if (arguments.recompute && !options.recompute.enabled) continue;
    work.options = options;
    rows.push_back(capstan::tune::weigh(work, machine));
  }
  return rows;
}

int run_estimate(const EstimateArguments& arguments) {
  const capstan::tune::Machine machine = estimate::machine_of(arguments);
  capstan::tune::Workload work = estimate::workload_of(arguments);
  const bool of_config = !arguments.config.empty();
  engine::MeshOptions& mesh = work.options.mesh;
  if (arguments.pipe > 1) mesh.pipe = arguments.pipe;
  if (arguments.tensor > 1) mesh.tensor = arguments.tensor;
  if (arguments.sequence > 1) mesh.sequence = arguments.sequence;
  if (mesh.pipe > 1 && !of_config) work.options.batch.accumulation_steps = 4 * mesh.pipe;
  if (of_config && arguments.recompute) work.options.recompute.enabled = true;
  const std::vector<capstan::tune::Candidate> all = weigh_all(arguments, work, machine);
  if (arguments.as_json) {
    json::Array values;
    for (const capstan::tune::Candidate& each : all) values.push_back(estimate::to_json(each));
    fmt::print("{}\n", json::write(json::Value(std::move(values))));
    return 0;
  }
  fmt::print("{}\nmicro-batches of {}\n\n", estimate::describe(work, machine, arguments.model),
             work.options.batch.micro_samples);
  std::vector<capstan::tune::MemoryRow> rows;
  for (const capstan::tune::Candidate& each : all) rows.push_back(estimate::row_of(each));
  fmt::print("{}", capstan::tune::memory_table(rows, machine));
  if (rows.size() == 1) fmt::print("\n{}", capstan::tune::phase_table(rows.front()));
  return 0;
}

}  // namespace

void add_estimate_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("estimate", "Compute how much memory a model takes to train");
  const auto arguments = std::make_shared<EstimateArguments>();
  estimate::add_options(*command, *arguments);
  command->add_option("--stage", arguments->stage, "Only this stage")->check(CLI::Range(0, 3));
  command->add_option("--pipe", arguments->pipe, "Stages of a pipeline")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--tensor", arguments->tensor, "Ranks that split every layer")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--sequence", arguments->sequence, "Ranks that share each sequence")
      ->check(CLI::Range(1, 1 << 16));
  command->add_flag("--recompute", arguments->recompute,
                    "Only with activations computed again in backward");
  command->add_flag("--json", arguments->as_json, "Print JSON, in bytes and seconds");
  command->callback([arguments, &exit_code] { exit_code = run_estimate(*arguments); });
}

}  // namespace capstan::cli
