#include "capstan/cli/train/run.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"
#include "capstan/base/error.h"
#include "capstan/base/guard.h"
#include "capstan/base/text.h"
#include "capstan/cli/train/checkpoints.h"
#include "capstan/cli/train/config.h"
#include "capstan/cli/train/cut_model.h"
#include "capstan/cli/train/places.h"
#include "capstan/cli/train/setup.h"
#include "capstan/cli/train/trainer.h"
#include "capstan/config/shared_values.h"
#include "capstan/engine/together.h"
#include "capstan/models/attention_choice.h"
#include "capstan/models/make_model.h"
#include "capstan/tune/workload.h"

namespace capstan::cli::train {
namespace {

// Warnings and errors go to the screen; the loop prints its own progress.
class ScreenLogger final : public Logger {
 public:
  explicit ScreenLogger(bool quiet) : quiet_(quiet) {}
  void log(LogLevel level, std::string_view text) override {
    if (quiet_ && level < LogLevel::error) return;
    // On a terminal the bar stands on this line: clear what the text does not cover.
    const char* const end = terminal_columns(stdout) > 0 ? "\033[K\n" : "\n";
    std::FILE* const out = level >= LogLevel::warning ? stderr : stdout;
    if (level == LogLevel::warning) std::fputs("warning: ", out);
    std::fprintf(out, "%.*s%s", static_cast<int>(text.size()), text.data(), end);
    std::fflush(out);  // in a log of both, before what is said next
  }

 private:
  bool quiet_;
};

void say(bool first_rank, const std::string& text) {
  if (!first_rank) return;
  std::fprintf(stdout, "%s\n", text.c_str());
  std::fflush(stdout);
}

// Whether `body`, which throws on all ranks or on none, did not refuse what the user gave. All know
// why then, and the first tells it while the others wait for it in close(): a launcher stops all
// when one has ended.
bool accepted(const comm::Group& group, Logger& logger, const std::function<void()>& body) {
  const auto refuse = [&](const Error& error) {
    if (group.rank() == 0) {
      logger.log(LogLevel::error, fmt::format("capstan: error: {}", error.what()));
    }
    return false;
  };
  try {
    body();
    return true;
  } catch (const ConfigError& error) {
    return refuse(error);
  } catch (const IoError& error) {
    return refuse(error);
  }
}

// What this rank has of the model. Stages are the outermost axis of the mesh; neighbours share a
// stage, as the tensor axis is its innermost.
std::shared_ptr<models::Model> make_part(const models::Blueprint& blueprint,
                                         const std::vector<models::BlockRange>& parts, int tensor,
                                         const comm::Group& group) {
  std::optional<models::BlockRange> part;
  if (!parts.empty()) {
    const int stages = static_cast<int>(parts.size());
    part = parts[static_cast<std::size_t>(group.rank() / (group.size() / stages))];
  }
  return models::make_model(*blueprint.with({.part = part}), {group.rank() % tensor, tensor});
}

// A group of its own: the engine's collectives have an order of theirs.
void share_sequences(models::Model& model, Engine& engine, comm::World& world) {
  const layout::Mesh& mesh = engine.mesh().mesh();
  if (mesh.size(layout::Axis::sequence) == 1) return;
  const auto group = std::make_shared<comm::Group>(
      world.make_parts(mesh.groups(layout::Axis::sequence), "shared sequences"));
  if (model.share_sequences(group)) return;
  throw ConfigError({.what = "this model cannot share sequences between ranks",
                     .where = "sequence_parallel_size",
                     .fix = "share sequences or split layers (--tensor), not both"});
}

// The trainer tells the monitors, which knows more than an engine: tokens, FLOPs, validation.
engine::Options without_monitors(engine::Options options) {
  options.monitor = {};
  return options;
}

monitor::Facts facts_of(const Arguments& arguments, const models::Blueprint& blueprint,
                        const Corpus& corpus, const comm::Group& group, c10::Device device) {
  return {{"model",
           fmt::format("{}, {} parameters", arguments.model.name, blueprint.parameter_count())},
          {"data", corpus.description},
          {"steps", std::to_string(arguments.max_steps)},
          {"ranks", std::to_string(group.size())},
          {"device", device.str()}};
}

void check_drops_layers(models::Model& model) {
  if (model.scale_branches({})) return;
  throw ConfigError({.what = "this model cannot leave layers out",
                     .where = "progressive_layer_drop",
                     .fix = "remove the section, or train a GPT-2"});
}

// Returns the exit code.
int train(const Arguments& arguments, comm::World& world, const config::Resolved& resolved,
          StopRequest& stop) {
  // Under --no-communication every rank is the first of its own world; one of them shows itself.
  const bool first = read_rank_env(process_env()).rank == 0;
  ScreenLogger logger(!first);
  for (const ErrorInfo& warning : resolved.warnings) {
    logger.log(LogLevel::warning, fmt::format("{} ({})", warning.what, warning.where));
  }
  const c10::Device device = choose_device(arguments.device, world.env());
  if (device.is_cuda()) models::prefer_cudnn_attention();
  std::optional<Corpus> corpus;
  std::shared_ptr<const models::Blueprint> blueprint;
  const bool loaded = accepted(world.group(), logger, [&] {
    engine::together(world.group(), device, [&] {
      if (world.group().rank() == 0) check_places(arguments);
      const DataArguments data = with_vocabulary_of(arguments.checkpoint.resume, arguments.data);
      corpus.emplace(load_corpus(data, sequence_length(arguments)));
    });
    say(first, "data: " + corpus->description);
    blueprint = model_blueprint(arguments.model, arguments.seed)
                    ->with({.vocab = corpus->vocab, .recompute = resolved.engine.recompute});
    blueprint =
        blueprint->with({.weights_loaded_later = can_resume(world.group(), device, *blueprint,
                                                            arguments.checkpoint.resume)});
  });
  if (!loaded) return kExitUserError;
  std::vector<models::BlockRange> parts;
  const int stages = resolved.engine.mesh.pipe;
  const bool cut = stages == 1 || accepted(world.group(), logger, [&] {
                     parts = tune::cut_model(*blueprint, stages, sequence_length(arguments));
                   });
  if (!cut) return kExitUserError;
  const int tensor = resolved.engine.mesh.tensor;
  std::shared_ptr<models::Model> model;
  const bool made = accepted(world.group(), logger,
                             [&] { model = make_part(*blueprint, parts, tensor, world.group()); });
  if (!made) return kExitUserError;
  if (!parts.empty()) say(first, "pipeline: " + describe_stages(parts));
  say(first, fmt::format("model: {}, {} parameters; {} on {}", arguments.model.name,
                         blueprint->parameter_count(), counted(world.group().size(), "rank"),
                         device.str()));
  model->module().to(device);
  // Each model drops out other activations; ranks that share one drop out the same where they have
  // the same.
  at::manual_seed(arguments.seed + static_cast<std::uint64_t>(world.group().rank() / tensor));
  std::unique_ptr<monitor::Log> monitors;
  const bool told = accepted(world.group(), logger, [&] {
    engine::together(world.group(), device, [&] {
      if (!first) return;
      monitors = std::make_unique<monitor::Log>(
          resolved.engine.monitor,
          monitor::LogParts{
              .logger = logger,
              .facts = facts_of(arguments, *blueprint, *corpus, world.group(), device),
              .goes_on = blueprint->weights_loaded_later()});
    });
  });
  if (!told) return kExitUserError;
  Engine engine(models::module_of(model), without_monitors(resolved.engine),
                {.group = world,
                 .logger = &logger,
                 .ties = shared_weights(*model, stages),
                 .extras = file_names(*model),
                 .shared = config::shared_values(resolved.table)});
  if (tensor > 1) model->join(engine.mesh().over(layout::Axis::tensor));
  if (!accepted(world.group(), logger, [&] {
        share_sequences(*model, engine, world);
        if (resolved.layer_drop) check_drops_layers(*model);
      })) {
    return kExitUserError;
  }
  data::Options sampling = resolved.data;
  if (!resolved.table.given("capstan.seed")) sampling.seed = arguments.seed;
  sampling.shuffle = !arguments.data.no_shuffle;
  Trainer({.arguments = arguments,
           .corpus = *corpus,
           .model = model,
           .engine = engine,
           .stop = stop,
           .device = device,
           .sampling = sampling,
           .curriculum = resolved.curriculum,
           .layer_drop = resolved.layer_drop,
           .shows = first,
           .monitors = monitors.get(),
           .metrics = resolved.engine.monitor.metrics,
           .logger = logger})
      .run();
  return 0;
}

}  // namespace

int run(const Arguments& arguments, comm::StartNccl start_nccl) {
  avoid_broken_amx();
  if (arguments.deterministic) compute_deterministically();
  const RankEnv started = read_rank_env(process_env());
  StopRequest stop([tells = started.rank == 0] {
    if (!tells) return;
    std::fputs("stopping after this step; a second request stops at once\n", stderr);
  });
  const RankEnv ranks = training_ranks(arguments, started);
  const config::Resolved resolved =
      training_config(arguments, {ranks.world_size, trains_on_gpus(arguments.device)});
  const auto world = comm::make_world(ranks, resolved.engine.comm, start_nccl);
  const int exit_code = train(arguments, *world, resolved, stop);
  world->close();
  // As a shell would say it of a program that the signal ended: the run did not do all it was to.
  return exit_code == 0 && stop.seen() ? 128 + stop.number() : exit_code;
}

}  // namespace capstan::cli::train
