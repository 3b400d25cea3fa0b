#include "capstan/cli/train/setup.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"
#include "capstan/json/reader.h"

namespace capstan::cli::train {
namespace {

// Of the default configuration: in a short run the warm-up is a tenth of it.
std::int64_t default_warmup_steps(std::int64_t max_steps) {
  return std::clamp<std::int64_t>(max_steps / 10, 1, 20);
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
  if (::access(folder.c_str(), W_OK) == 0) return;
  throw io::io_failure({.verb = "write into", .file = folder / "checkpoint"}, errno);
}

void check_file(const std::filesystem::path& file) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(file, ignored);
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw io::io_failure({.verb = "open", .file = file}, errno);
  ::close(fd);
  if (!existed) std::filesystem::remove(file, ignored);
}

}  // namespace

RankEnv training_ranks(const Arguments& arguments, const RankEnv& started) {
  if (!arguments.no_communication) return started;
  RankEnv alone = started;
  alone.rank = 0;
  alone.world_size = 1;
  return alone;
}

config::Resolved training_config(const Arguments& arguments, int world_size) {
  const json::Document document =
      arguments.config.empty() ? json::read_document(default_config(), "the default configuration")
                               : json::read_argument(arguments.config);
  config::Context context;
  context.world_size = world_size;
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
  resolved.engine.checkpoint.asynchronous = !checkpoint.save.empty() && !checkpoint.wait_for_saves;
  return resolved;
}

void check_places(const OutputArguments& output, const CheckpointArguments& checkpoint) {
  if (!checkpoint.save.empty()) check_folder(checkpoint.save);
  if (!output.curve.empty()) check_file(output.curve);
}

models::GptOptions model_options(const ModelArguments& arguments, std::uint64_t seed) {
  models::GptOptions options = models::gpt_by_name(arguments.name);
  options.layers = arguments.layers.value_or(options.layers);
  options.width = arguments.width.value_or(options.width);
  options.heads = arguments.heads.value_or(options.heads);
  options.context = arguments.context.value_or(options.context);
  options.dropout = arguments.dropout;
  options.seed = seed;
  return options;
}

void compute_deterministically() {
  // cuBLAS reads it when it starts; without it streams share a workspace and sums vary.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

c10::Device choose_device(const std::string& wanted, const RankEnv& ranks) {
  const int gpus = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (wanted == "cuda" && gpus == 0) {
    throw ConfigError({.what = "there is no GPU that libtorch can use",
                       .where = "--device cuda",
                       .fix = "see what is missing with: capstan report"});
  }
  if (wanted == "cpu" || gpus == 0) return c10::Device(c10::kCPU);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(ranks.local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

}  // namespace capstan::cli::train
