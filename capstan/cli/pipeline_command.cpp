// capstan pipeline: what a pipeline schedule looks like and how well it uses its stages.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/pipeline/activations.h"
#include "capstan/pipeline/early_receives.h"
#include "capstan/pipeline/picture.h"
#include "capstan/pipeline/schedules.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::cli {
namespace {

constexpr std::size_t kWidest = 10'000;  // columns; a terminal cannot show more anyway

constexpr int kReceivesAhead = 2;  // hides transfers of up to two forwards

struct PipelineArguments {
  std::string schedule = "1f1b";
  pipeline::Shape shape;
  pipeline::Costs costs;
};

int show(const PipelineArguments& arguments) {
  const pipeline::Shape& shape = arguments.shape;
  const pipeline::Schedule schedule =
      pipeline::make_schedule(pipeline::kind_named(arguments.schedule), shape);
  const pipeline::Simulation run = pipeline::simulate(
      pipeline::with_early_receives(schedule, kReceivesAhead), {arguments.costs});
  const std::size_t columns = pipeline::picture_columns(run);
  if (columns <= kWidest) {
    fmt::print("{}\n", pipeline::draw(run));
  } else {
    fmt::print("(a picture would have {} columns)\n\n", columns);
  }
  fmt::print("time         {}, of which each stage works {}: efficiency {:.1f} %\n", run.length,
             run.busy(0), 100 * run.efficiency());
  if (!schedule.training) return 0;
  std::vector<std::string> peaks;
  for (const int chunks : pipeline::peak_activations(schedule)) {
    peaks.push_back(fmt::format("{:.4g}", static_cast<double>(chunks) / shape.chunks));
  }
  fmt::print("activations  of at most {} micro-batches, from the first stage to the last\n",
             fmt::join(peaks, ", "));
  return 0;
}

}  // namespace

void add_pipeline_command(CLI::App& app, int& exit_code) {
  CLI::App* pipeline = app.add_subcommand("pipeline", "Look at pipeline schedules");
  pipeline->require_subcommand(1);
  const auto arguments = std::make_shared<PipelineArguments>();
  CLI::App* command = pipeline->add_subcommand(
      "show", "Draw a schedule, with its efficiency and the activations it holds");
  command->add_option("--stages", arguments->shape.stages, "Stages of the pipeline")
      ->required()
      ->check(CLI::Range(1, 256));
  command
      ->add_option("--micro-batches", arguments->shape.micro_batches,
                   "Micro-batches per optimizer step")
      ->required()
      ->check(CLI::Range(1, 1024));
  command->add_option("--schedule", arguments->schedule, "Which schedule (default: 1f1b)")
      ->check(CLI::IsMember(pipeline::kind_names()));
  command
      ->add_option("--chunks", arguments->shape.chunks,
                   "Parts of the model on each stage, for interleaved (default: 1)")
      ->check(CLI::Range(1, 16));
  pipeline::Costs& costs = arguments->costs;
  command
      ->add_option("--forward", costs.forward,
                   "Time of the forward of one part for one micro-batch (default: 1)")
      ->check(CLI::Range(1, 100));
  command
      ->add_option("--backward-inputs", costs.backward_inputs,
                   "Time of the half of backward that makes gradients of inputs (default: 1)")
      ->check(CLI::Range(1, 100));
  command
      ->add_option("--backward-weights", costs.backward_weights,
                   "Time of the half that makes gradients of weights (default: 1)")
      ->check(CLI::Range(1, 100));
  command
      ->add_option("--transfer", costs.transfer,
                   "Time of a transfer between two stages (default: 0)")
      ->check(CLI::Range(0, 100));
  command->callback([arguments, &exit_code] { exit_code = show(*arguments); });
}

}  // namespace capstan::cli
