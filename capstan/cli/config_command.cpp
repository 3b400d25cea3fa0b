// capstan config check, explain, schema, features, docs.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/cli/command.h"
#include "capstan/config/docs.h"
#include "capstan/config/explain.h"
#include "capstan/config/json_schema.h"
#include "capstan/config/resolve.h"
#include "capstan/json/writer.h"
#include "capstan/schedule/curriculum.h"
#include "capstan/schedule/layer_drop.h"

namespace capstan::cli {
namespace {

struct ConfigArguments {
  std::string file;
  int world_size = 0;    // 0: from the environment, else from the file
  long hidden_size = 0;  // 0: unknown
  bool lenient = false;
  bool as_json = false;
};

config::Context context_of(const ConfigArguments& arguments) {
  config::Context context;
  context.lenient = arguments.lenient;
  if (arguments.hidden_size > 0) context.hidden_size = arguments.hidden_size;
  if (arguments.world_size > 0) {
    context.world_size = arguments.world_size;
    context.world_size_origin = {config::OriginKind::command_line,
                                 fmt::format("-n {}", arguments.world_size)};
    return context;
  }
  const RankEnv env = read_rank_env(process_env());
  if (!env.launcher.empty()) {
    context.world_size = env.world_size;
    context.world_size_origin = {config::OriginKind::environment,
                                 fmt::format("world size set by {}", env.launcher)};
  }
  return context;
}

void print_warnings(const std::vector<ErrorInfo>& warnings) {
  for (const ErrorInfo& warning : warnings) {
    std::string text = fmt::format("warning: {}\n  where: {}\n", warning.what, warning.where);
    if (!warning.fix.empty()) text += fmt::format("  fix:   {}\n", warning.fix);
    std::fputs(text.c_str(), stderr);
  }
}

config::Resolved resolve_arguments(const ConfigArguments& arguments) {
  const json::Document document = json::read_argument(arguments.file);
  config::Outcome outcome = config::check(document, context_of(arguments));
  print_warnings(outcome.warnings);
  if (!outcome.resolved)
    throw ConfigError(config::join_problems(outcome.problems, document.source));
  if (outcome.resolved->curriculum) {
    schedule::check(*outcome.resolved->curriculum, "curriculum_learning");
  }
  if (outcome.resolved->layer_drop) schedule::check(*outcome.resolved->layer_drop);
  return *std::move(outcome.resolved);
}

int check_config(const ConfigArguments& arguments) {
  const config::Resolved resolved = resolve_arguments(arguments);
  const engine::BatchOptions& batch = resolved.engine.batch;
  fmt::print(
      "OK: stage {}, {} parameters, batch {} = {} x {} x {} (micro-batch x accumulation x ranks)\n",
      resolved.engine.shard.stage, name(resolved.engine.precision.params), batch.train_samples,
      batch.micro_samples, batch.accumulation_steps, resolved.world_size);
  return 0;
}

int explain_config(const ConfigArguments& arguments) {
  const config::Resolved resolved = resolve_arguments(arguments);
  if (arguments.as_json) {
    fmt::print("{}\n", json::write(config::explain_as_json(resolved)));
  } else {
    fmt::print("{}", config::explain(resolved));
  }
  return 0;
}

void add_file_options(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("FILE", arguments.file, "A file, JSON text, or JSON text in base64")
      ->required();
  command.add_option("-n,--num_gpus", arguments.world_size, "Number of ranks")
      ->check(CLI::Range(1, 1 << 24));
  command
      .add_option("--hidden-size", arguments.hidden_size,
                  "The model's hidden size, for values that are \"auto\"")
      ->check(CLI::Range(1, 1 << 24));
  command.add_flag("--lenient", arguments.lenient,
                   "Warn about unknown keys instead of refusing them");
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("config", "Check and explain a configuration.");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<ConfigArguments>();

  CLI::App* check = command->add_subcommand(
      "check", "List every problem with its line, its column and how to fix it.");
  add_file_options(*check, *arguments);
  check->callback([arguments, &exit_code] { exit_code = check_config(*arguments); });

  CLI::App* explain =
      command->add_subcommand("explain", "Print every value and where it comes from.");
  add_file_options(*explain, *arguments);
  explain->add_flag("--json", arguments->as_json, "Print JSON");
  explain->callback([arguments, &exit_code] { exit_code = explain_config(*arguments); });

  command->add_subcommand("schema", "Print a JSON Schema for editors.")->callback([] {
    fmt::print("{}\n", json::write(config::json_schema(config::schema())));
  });
  command->add_subcommand("features", "List what works and what is refused.")->callback([] {
    fmt::print("{}", config::feature_table(config::schema()));
  });
  command->add_subcommand("docs", "Print docs/config.md.")->callback([] {
    fmt::print("{}", config::markdown(config::schema()));
  });
}

}  // namespace capstan::cli
