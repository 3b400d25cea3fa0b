#include "capstan/cli/train/config.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

namespace capstan::cli::train {
namespace {

// Of the default configuration: in a short run the warm-up is a tenth of it.
std::int64_t default_warmup_steps(std::int64_t max_steps) {
  return std::clamp<std::int64_t>(max_steps / 10, 1, 20);
}

}  // namespace

models::GptOptions model_options(const ModelArguments& arguments, std::uint64_t seed) {
  models::GptOptions options = models::gpt_by_name(arguments.name);
  options.layers = arguments.layers.value_or(options.layers);
  options.width = arguments.width.value_or(options.width);
  options.heads = arguments.heads.value_or(options.heads);
  options.context = arguments.context.value_or(options.context);
  options.dropout = arguments.dropout;
  options.seed = seed;
  models::check(options);
  return options;
}

std::int64_t sequence_length(const Arguments& arguments) {
  const std::int64_t context = model_options(arguments.model, arguments.seed).context;
  const std::int64_t tokens = arguments.data.tokens > 0 ? arguments.data.tokens : context;
  if (tokens <= context) return tokens;
  throw ConfigError({.what = fmt::format("{} tokens per sequence, but {} has a context of {}",
                                         tokens, arguments.model.name, context),
                     .where = fmt::format("--tokens {}", tokens),
                     .fix = fmt::format("give at most {}, or also --context {}", context, tokens)});
}

config::Resolved training_config(const Arguments& arguments, int world_size) {
  const json::Document document =
      arguments.config.empty() ? json::read_document(default_config(), "the default configuration")
                               : json::read_argument(arguments.config);
  config::Context context;
  context.world_size = world_size;
  context.door = config::Door::program;
  context.trains = true;
  context.hidden_size = model_options(arguments.model, arguments.seed).width;
  context.auto_values["scheduler.params.total_num_steps"] = json::Value(arguments.max_steps);
  if (arguments.config.empty()) {
    context.auto_values["scheduler.params.warmup_num_steps"] =
        json::Value(default_warmup_steps(arguments.max_steps));
  }
  config::Resolved resolved = config::resolve(document, context);
  // The progress view shows the same figures; the engine's own lines come only when asked for.
  if (!resolved.table.given("steps_per_print")) resolved.engine.profile.steps_per_print = 0;
  const CheckpointArguments& checkpoint = arguments.checkpoint;
  if (checkpoint.wait_for_saves || !resolved.table.given("checkpoint.writer.decoupled")) {
    resolved.engine.checkpoint.asynchronous =
        !checkpoint.save.empty() && !checkpoint.wait_for_saves;
  }
  return resolved;
}

}  // namespace capstan::cli::train
