#include "capstan/cli/estimate/arguments.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/config/resolve.h"
#include "capstan/models/registry.h"

namespace capstan::cli::estimate {
namespace {

void add_model_options(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--model", arguments.model,
                  fmt::format("{}; or a config.json, or a folder with one",
                              fmt::join(models::model_names(), ", ")))
      ->capture_default_str();
  const auto size = [&](const char* name, std::optional<std::int64_t>& value, const char* help) {
    command.add_option(name, value, help)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  };
  size("--layers", arguments.layers, "Number of blocks (default: the model's)");
  size("--width", arguments.width, "Width (default: the model's)");
  size("--heads", arguments.heads, "Number of attention heads (default: the model's)");
  size("--context", arguments.context, "Longest sequence (default: the model's)");
  size("--vocab", arguments.vocab, "Size of the vocabulary (default: the model's)");
  command.add_option("--tokens", arguments.tokens, "Tokens per sequence (default: the context)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command.add_option("--dropout", arguments.dropout, "Fraction of activations dropped at random")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
}

void add_machine_options(CLI::App& command, Arguments& arguments) {
  const auto bytes = [&](const char* name, std::optional<std::int64_t>& value, const char* help) {
    command.add_option(name, value, help)
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 60));
  };
  command.add_option("--machine", arguments.machine,
                     fmt::format("{}; or a JSON file (docs/tools.md)",
                                 fmt::join(capstan::tune::machine_names(), ", ")));
  command.add_option("-n,--gpus", arguments.gpus, "GPUs in all, one rank each (default: 1)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--gpus-per-host", arguments.gpus_per_host, "GPUs in each machine")
      ->check(CLI::Range(1, 1024));
  bytes("--gpu-memory", arguments.gpu_bytes, "Memory of each GPU, for example 24GiB");
  bytes("--host-memory", arguments.host_bytes, "Memory of each machine, for example 60GiB");
  bytes("--disk-space", arguments.disk_bytes, "Fast disk of each machine, for example 1TiB");
  command.add_flag("--cpu", arguments.on_cpu, "Ranks compute on the processor");
}

std::shared_ptr<const models::Blueprint> blueprint_of(const Arguments& arguments) {
  namespace fs = std::filesystem;
  std::shared_ptr<const models::Blueprint> model;
  if (fs::is_directory(arguments.model)) {
    model = models::read_blueprint(models::ConfigFile(fs::path(arguments.model) / "config.json"));
  } else if (fs::exists(arguments.model)) {
    model = models::read_blueprint(models::ConfigFile(arguments.model));
  } else {
    model = models::blueprint_by_name(arguments.model);
  }
  return model->with({.vocab = arguments.vocab,
                      .context = arguments.context,
                      .width = arguments.width,
                      .layers = arguments.layers,
                      .heads = arguments.heads,
                      .dropout = arguments.dropout});
}

engine::Options options_of(const Arguments& arguments, const models::Blueprint& model) {
  if (arguments.config.empty()) {
    engine::Options options;
    options.optimizer = optim::Options{};
    options.precision.params = DType::bf16;
    return options;
  }
  config::Context context;
  context.world_size = arguments.gpus;
  context.hidden_size = model.sizes().width;
  context.reads_only = true;
  return config::resolve(json::read_argument(arguments.config), context).engine;
}

DType dtype_named(const std::string& name) {
  if (name == "fp32") return DType::fp32;
  return name == "fp16" ? DType::fp16 : DType::bf16;
}

}  // namespace

void add_options(CLI::App& command, Arguments& arguments) {
  add_model_options(command, arguments);
  command.add_option("--config", arguments.config, "A DeepSpeed-style JSON file");
  command.add_option("--dtype", arguments.dtype, "fp32, fp16 or bf16 (default: bf16)")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  command.add_option("--micro-batch", arguments.micro_batch, "Sequences per GPU and forward")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command.add_option("--batch", arguments.batch, "Sequences per optimizer step, over all GPUs")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  add_machine_options(command, arguments);
}

capstan::tune::Machine machine_of(const Arguments& arguments) {
  capstan::tune::Machine machine;
  if (!arguments.machine.empty()) {
    machine = capstan::tune::find_machine(arguments.machine);
  } else if (arguments.on_cpu) {
    machine = capstan::tune::find_machine("cpu");
  } else {
    machine = capstan::tune::find_machine("a100");
    machine.name = "";
    // Unless it was said, only what fits nowhere is refused.
    if (!arguments.gpu_bytes) machine.device_bytes = 0;
    machine.host_bytes = 0;
  }
  if (arguments.on_cpu) machine.on_gpu = false;
  machine.devices_per_host = arguments.gpus_per_host.value_or(
      arguments.machine.empty() ? arguments.gpus : machine.devices_per_host);
  machine.device_bytes = arguments.gpu_bytes.value_or(machine.device_bytes);
  machine.host_bytes = arguments.host_bytes.value_or(machine.host_bytes);
  machine.disk_bytes = arguments.disk_bytes.value_or(machine.disk_bytes);
  return machine;
}

capstan::tune::Workload workload_of(const Arguments& arguments) {
  capstan::tune::Workload work;
  work.model = blueprint_of(arguments);
  const models::Sizes sizes = work.model->sizes();
  work.tokens = arguments.tokens > 0 ? arguments.tokens : sizes.context;
  if (work.tokens > sizes.context) {
    throw ConfigError(
        {.what = fmt::format("{} tokens per sequence, but {} has a context of {}", work.tokens,
                             arguments.model, sizes.context),
         .where = fmt::format("--tokens {}", work.tokens),
         .fix = fmt::format("give at most {}, or also --context {}", sizes.context, work.tokens)});
  }
  work.ranks = arguments.gpus;
  work.options = options_of(arguments, *work.model);
  engine::BatchOptions& batch = work.options.batch;
  if (!arguments.dtype.empty()) work.options.precision.params = dtype_named(arguments.dtype);
  if (arguments.config.empty() || arguments.micro_batch) {
    batch.micro_samples = arguments.micro_batch.value_or(1);
  }
  if (arguments.config.empty()) batch.train_samples = arguments.batch;
  return work;
}

std::string describe(const capstan::tune::Workload& work, const capstan::tune::Machine& machine,
                     const std::string& model) {
  const auto billions = static_cast<double>(work.model->parameter_count()) / 1e9;
  std::string where = counted(work.ranks, machine.on_gpu ? "GPU" : "CPU rank");
  if (!machine.name.empty()) where += fmt::format(" ({})", machine.name);
  if (machine.on_gpu && machine.device_bytes > 0) {
    where += fmt::format(", {} each", format_bytes(machine.device_bytes));
  }
  if (machine.host_bytes > 0) {
    where += fmt::format(", {} of host memory", format_bytes(machine.host_bytes));
  }
  return fmt::format("{}, {:.3g} B parameters: sequences of {} tokens in {} on {}", model, billions,
                     work.tokens, name(work.options.precision.params), where);
}

}  // namespace capstan::cli::estimate
