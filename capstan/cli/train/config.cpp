#include "capstan/cli/train/config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string>

#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"
#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/json/reader.h"
#include "capstan/models/registry.h"
#include "capstan/schedule/curriculum.h"
#include "capstan/schedule/layer_drop.h"

namespace capstan::cli::train {
namespace {

constexpr const char* kSequence = "sequence_parallel_size";

std::int64_t warmup_steps(std::int64_t max_steps) {
  return std::clamp<std::int64_t>(max_steps / 2, 1, 100);
}

// The wider the model, the smaller: about what GPT-3's sizes were trained with. Narrow models stand
// more, but Adam moves each weight by the rate at once: where it rises faster than this from step
// to step, the first direction that all tokens share flips its sign, and the loss of whole
// sequences with it.
double learning_rate(std::int64_t width, std::int64_t max_steps) {
  constexpr double kLargest = 3e-3;
  constexpr double kLargestRise = 4e-5;
  return std::min({kLargest, 0.4 / static_cast<double>(width),
                   kLargestRise * static_cast<double>(warmup_steps(max_steps))});
}

void check_pipe(const Arguments& arguments, int stages) {
  if (stages == 1 || (!arguments.no_optimizer_step && !arguments.no_communication)) return;
  throw ConfigError({.what = "a pipeline cannot be measured without its steps or transfers",
                     .where = fmt::format("pipeline of {} stages", stages),
                     .fix = "leave out --no-optimizer-step and --no-communication"});
}

// Ranks have equally long parts.
void check_sequence(const Arguments& arguments, int ranks) {
  if (ranks == 1) return;
  const std::int64_t tokens = sequence_length(arguments);
  if (tokens % ranks == 0) return;
  throw ConfigError({.what = fmt::format("sequences of {} tokens cannot be cut into {} equal parts",
                                         tokens, ranks),
                     .where = fmt::format("{} {}", kSequence, ranks),
                     .fix = fmt::format("give --tokens {}, or another multiple of {}",
                                        std::max<std::int64_t>(1, tokens / ranks) * ranks, ranks)});
}

ConfigError no_steps(const std::string& where) {
  return ConfigError({.what = "this is not a first and a last step",
                      .where = where,
                      .fix = "give two whole numbers, for example --trace-steps 3:5"});
}

// "3:5" as [3, 5]; "3" is that step alone.
json::Value trace_steps(const std::string& text) {
  const std::string where = "--trace-steps " + text;
  json::Array steps;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    std::int64_t step = 0;
    const char* const last = text.data() + end;
    const auto read = std::from_chars(text.data() + begin, last, step);
    if (read.ec != std::errc() || read.ptr != last) throw no_steps(where);
    steps.emplace_back(step);
    begin = end + 1;
  }
  if (steps.size() == 1) steps.push_back(steps.front());
  if (steps.size() != 2) throw no_steps(where);
  return json::Value(std::move(steps));
}

void measure(const MeasureArguments& asked, config::Context& context) {
  if (asked.profile) {
    context.overrides["flops_profiler.enabled"] = {json::Value(true), "--profile"};
    context.overrides["flops_profiler.profile_step"] = {json::Value(*asked.profile), "--profile"};
  }
  if (!asked.trace.empty()) {
    context.overrides["capstan.trace.folder"] = {json::Value(asked.trace), "--trace"};
  }
  if (!asked.trace_steps.empty()) {
    context.overrides["capstan.trace.steps"] = {trace_steps(asked.trace_steps), "--trace-steps"};
  }
}

// A report that never comes would be noticed when the run is over.
void check_measured(const Arguments& arguments, const profile::Options& asked) {
  const auto refuse = [&](const char* what, std::int64_t step, const char* option) {
    throw ConfigError({.what = fmt::format("{} step {}, but the run ends after step {}", what, step,
                                           arguments.max_steps),
                       .where = option,
                       .fix = fmt::format("give an earlier step, or --max-steps {}", step)});
  };
  const profile::TraceOptions& trace = asked.trace;
  if (!arguments.measure.trace_steps.empty() && trace.folder.empty()) {
    throw ConfigError({.what = "there is no folder for the timeline",
                       .where = "--trace-steps " + arguments.measure.trace_steps,
                       .fix = "add --trace DIR"});
  }
  if (!trace.folder.empty() && trace.last_step > arguments.max_steps) {
    refuse("the timeline ends with", trace.last_step, "--trace-steps (capstan.trace.steps)");
  }
  if (asked.flops.enabled && asked.flops.step >= arguments.max_steps) {
    refuse("the profile is of", asked.flops.step + 1, "--profile (flops_profiler.profile_step)");
  }
}

bool divides(std::int64_t ranks, const schedule::Curriculum& curriculum, std::int64_t tokens) {
  std::vector<std::int64_t> lengths = curriculum.difficulties;
  if (curriculum.growth != schedule::Growth::fixed_discrete) {
    lengths = {curriculum.max, curriculum.multiple};
  }
  return std::ranges::all_of(
      lengths, [&](std::int64_t length) { return std::min(length, tokens) % ranks == 0; });
}

// What changes from step to step, as far as it depends on who trains.
void check_pace(const Arguments& arguments, const config::Resolved& resolved) {
  if (resolved.layer_drop) {
    schedule::check(*resolved.layer_drop);
    const int stages = resolved.engine.mesh.pipe;
    if (stages > 1) {
      throw ConfigError({.what = "layers of a pipeline cannot be dropped: stages would wait for "
                                 "each other",
                         .where = fmt::format("progressive_layer_drop, with {} stages", stages),
                         .fix = "leave out --pipe and pipeline.stages, or remove the section"});
    }
  }
  if (!resolved.curriculum) return;
  const schedule::Curriculum& curriculum = *resolved.curriculum;
  schedule::check(curriculum, "curriculum_learning");
  if (curriculum.growth == schedule::Growth::custom) {
    throw ConfigError(
        {.what = "a custom curriculum is a function, which a program cannot be given",
         .where = "curriculum_learning.schedule_type",
         .fix = "use fixed_linear, fixed_root or fixed_discrete, or train in Python"});
  }
  const int ranks = resolved.engine.mesh.sequence;
  if (ranks > 1 && !divides(ranks, curriculum, sequence_length(arguments))) {
    throw ConfigError(
        {.what = fmt::format("sequences of every length of the curriculum must have "
                             "{} equal parts",
                             ranks),
         .where = fmt::format("curriculum_learning, with {} {}", kSequence, ranks),
         .fix = fmt::format(
             "make max_difficulty and difficulty_step, or all that are listed, multiples of {}",
             ranks)});
  }
}

// What "auto" stands for in a run of ours.
std::map<std::string, json::Value> auto_values(const Arguments& arguments, std::int64_t width,
                                               bool bf16) {
  return {{"bf16.enabled", json::Value(bf16)},
          {"optimizer.params.lr", json::Value(learning_rate(width, arguments.max_steps))},
          {"scheduler.params.total_num_steps", json::Value(arguments.max_steps)},
          {"scheduler.params.warmup_num_steps", json::Value(warmup_steps(arguments.max_steps))}};
}

}  // namespace

std::shared_ptr<const models::Blueprint> model_blueprint(const ModelArguments& arguments,
                                                         std::uint64_t seed) {
  return models::blueprint_by_name(arguments.name)
      ->with({.context = arguments.context,
              .width = arguments.width,
              .layers = arguments.layers,
              .heads = arguments.heads,
              .dropout = arguments.dropout,
              .seed = seed});
}

std::int64_t sequence_length(const Arguments& arguments) {
  const std::int64_t context = model_blueprint(arguments.model, arguments.seed)->sizes().context;
  const std::int64_t tokens = arguments.data.tokens > 0 ? arguments.data.tokens : context;
  if (tokens <= context) return tokens;
  throw ConfigError({.what = fmt::format("{} tokens per sequence, but {} has a context of {}",
                                         tokens, arguments.model.name, context),
                     .where = fmt::format("--tokens {}", tokens),
                     .fix = fmt::format("give at most {}, or also --context {}", context, tokens)});
}

config::Resolved training_config(const Arguments& arguments, const Ranks& ranks) {
  const json::Document document =
      arguments.config.empty() ? json::read_document(default_config(arguments.pipe.value_or(1)),
                                                     "the default configuration")
                               : json::read_argument(arguments.config);
  config::Context context;
  const std::int64_t width = model_blueprint(arguments.model, arguments.seed)->sizes().width;
  context.world_size = ranks.count;
  if (arguments.pipe) {
    context.overrides["pipeline.stages"] = {json::Value(static_cast<std::int64_t>(*arguments.pipe)),
                                            fmt::format("--pipe {}", *arguments.pipe)};
  }
  if (!arguments.schedule.empty()) {
    context.overrides["capstan.pipeline_schedule"] = {json::Value(arguments.schedule),
                                                      "--schedule " + arguments.schedule};
  }
  if (arguments.sequence > 0) {
    context.overrides[kSequence] = {
        .value = json::Value(static_cast<std::int64_t>(arguments.sequence)),
        .why = fmt::format("--sequence {}", arguments.sequence)};
  }
  if (arguments.tensor) {
    context.overrides["tensor_parallel.autotp_size"] = {json::Value(*arguments.tensor), "--tensor"};
  }
  if (const std::string metrics = metrics_path(arguments.output); !metrics.empty()) {
    const bool named = !arguments.output.metrics.empty();
    context.overrides["capstan.metrics"] = {json::Value(metrics), named ? "--metrics" : "--page"};
  }
  measure(arguments.measure, context);
  context.door = config::Door::program;
  context.trains = true;
  context.hidden_size = width;
  context.auto_values = auto_values(arguments, width, /*bf16=*/false);
  config::Resolved resolved = config::resolve(document, context);
  const bool bf16 = ranks.on_gpus || computes_natively(DType::bf16);
  if (bf16 && resolved.engine.precision.params == DType::fp32) {
    context.auto_values = auto_values(arguments, width, bf16);
    resolved = config::resolve(document, context);
  }
  check_pipe(arguments, resolved.engine.mesh.pipe);
  check_sequence(arguments, resolved.engine.mesh.sequence);
  check_measured(arguments, resolved.engine.profile);
  check_pace(arguments, resolved);
  // The progress view shows the same figures; the engine's own lines come only when asked for.
  if (!resolved.table.given("steps_per_print")) resolved.engine.profile.steps_per_print = 0;
  const CheckpointArguments& checkpoint = arguments.checkpoint;
  if (checkpoint.wait_for_saves || !resolved.table.given("checkpoint.writer.decoupled")) {
    resolved.engine.checkpoint.asynchronous =
        !checkpoint.save.empty() && !checkpoint.wait_for_saves;
  }
  // For `capstan doctor`, where the program that starts the ranks made its folder.
  std::string& metrics = resolved.engine.monitor.metrics;
  const std::string diagnosis = checkpoint.save + "/diagnosis";
  std::error_code none;
  if (metrics.empty() && !checkpoint.save.empty() &&
      std::filesystem::is_directory(diagnosis, none)) {
    metrics = diagnosis + "/metrics.jsonl";
  }
  return resolved;
}

}  // namespace capstan::cli::train
