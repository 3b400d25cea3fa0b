// capstan plan: from a model, a machine and a goal to a configuration that runs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/cli/command.h"
#include "capstan/cli/estimate/arguments.h"
#include "capstan/cli/estimate/view.h"
#include "capstan/io/durable.h"
#include "capstan/json/writer.h"

namespace capstan::cli {
namespace {

struct PlanArguments : estimate::Arguments {
  std::string goal = "fastest";
  std::vector<std::string> nvme_paths;
  std::string output;
  bool as_json = false;
};

void print_json(const capstan::tune::Plan& plan) {
  json::Array ladder;
  for (const capstan::tune::Step& step : plan.ladder) {
    json::Value row = estimate::to_json(step.candidate);
    const char* const verdict = step.verdict == capstan::tune::Step::Verdict::taken ? "taken"
                                : step.verdict == capstan::tune::Step::Verdict::passed
                                    ? "passed"
                                    : "not needed";
    ladder.push_back(row.add("step", json::Value(step.title)).add("verdict", json::Value(verdict)));
  }
  json::Array ranking;
  for (const capstan::tune::Candidate& each : plan.ranking)
    ranking.push_back(estimate::to_json(each));
  json::Value value{json::Object{}};
  value.add("ladder", json::Value(std::move(ladder)))
      .add("ranking", json::Value(std::move(ranking)));
  if (plan.best) value.add("config", capstan::tune::configuration_of(plan.best->work));
  fmt::print("{}\n", json::write(value));
}

void print_time(const capstan::tune::StepTime& time) {
  const std::pair<const char*, capstan::tune::Seconds> parts[] = {
      {"compute", time.compute},      {"recompute", time.recompute},
      {"gather", time.gather},        {"reduce", time.reduce},
      {"update", time.update},        {"between layers", time.layers},
      {"pipeline waits", time.bubble}};
  std::string text;
  for (const auto& [what, part] : parts) {
    if (part.count() < 1e-7) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, estimate::to_text(part));
  }
  fmt::print("a step: {}\n", text);
}

ConfigError nothing_fits(const capstan::tune::Plan& plan) {
  const std::string nearest =
      plan.smallest ? fmt::format("{}: {}", plan.smallest->title, plan.smallest->lacks)
                    : "no way to divide the model among these ranks";
  return ConfigError({.what = "nothing fits; the nearest is " + nearest,
                      .where = "capstan plan",
                      .fix = "give more or larger GPUs (--gpus, --gpu-memory), more host memory "
                             "(--host-memory), a fast disk (--nvme DIR), or shorter sequences "
                             "(--tokens)"});
}

int run_plan(const PlanArguments& arguments) {
  capstan::tune::Question ask{.work = estimate::workload_of(arguments),
                              .machine = estimate::machine_of(arguments),
                              .goal = capstan::tune::goal_named(arguments.goal),
                              .nvme_paths = arguments.nvme_paths};
  if (ask.machine.on_gpu && ask.machine.device_bytes == 0) {
    throw ConfigError(
        {.what = "nothing says how much memory a GPU has",
         .where = "capstan plan",
         .fix = "name the machine, --machine a100, or its memory, --gpu-memory 24GiB"});
  }
  const capstan::tune::Plan plan = capstan::tune::make_plan(ask);
  if (arguments.as_json) {
    print_json(plan);
  } else {
    fmt::print("{}\n\n", estimate::describe(ask.work, ask.machine, arguments.model));
    fmt::print("The ladder, on {}:\n{}\n",
               counted(plan.ladder.front().candidate.work.ranks, "rank"),
               estimate::ladder_table(plan.ladder));
  }
  if (!plan.best) throw nothing_fits(plan);
  const std::string config = json::write(capstan::tune::configuration_of(plan.best->work)) + "\n";
  if (!arguments.output.empty()) {
    io::write_durably(arguments.output, std::as_bytes(std::span(config)));
  }
  if (arguments.as_json) return 0;
  fmt::print("The best of {} ways that fit ({}):\n{}\n", plan.ranking.size(), arguments.goal,
             estimate::ranking_table(plan.ranking, 5));
  fmt::print("{}\n", plan.best->title);
  print_time(plan.best->time);
  if (arguments.output.empty()) {
    fmt::print("\n{}", config);
  } else {
    fmt::print("\nwritten to {}; train with: capstan train --model {} --config {}{}\n",
               arguments.output, arguments.model, arguments.output,
               capstan::tune::command_options(plan.best->work));
  }
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "Find a configuration that fits and is fast");
  const auto arguments = std::make_shared<PlanArguments>();
  estimate::add_options(*command, *arguments);
  command->add_option("--goal", arguments->goal, "fastest, largest-batch or fewest-gpus")
      ->check(CLI::IsMember(capstan::tune::goal_names()))
      ->capture_default_str();
  command->add_option("--nvme", arguments->nvme_paths, "A folder on a fast disk for offloading");
  command->add_option("-o,--output", arguments->output, "Write the configuration to this file");
  command->add_flag("--json", arguments->as_json, "Print JSON, in bytes and seconds");
  command->callback([arguments, &exit_code] { exit_code = run_plan(*arguments); });
}

}  // namespace capstan::cli
