#include "capstan/cli/start_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/cli/doctor/job_record.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/train/progress_view.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/run.h"

namespace capstan::cli {
namespace {

// Turns of the loop, some 50 us. Measured: docs/performance.md, "Threads that wait".
constexpr const char* kSpinCount = "1000";

// A last save of a large model takes minutes. Who does not want to wait asks a second time; and
// when a rank has failed the others end at once.
constexpr std::chrono::minutes kGrace{10};

bool keeps_state_on_disk(const std::string& config) {
  if (config.empty()) return false;
  try {
    const config::Outcome outcome = config::check(json::read_argument(config), {});
    if (!outcome.resolved) return false;
    const store::Options& store = outcome.resolved->engine.store;
    return store.optimizer.placement == store::Placement::nvme ||
           store.params.placement == store::Placement::nvme;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void calm_openmp_threads(const std::string& config) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || !keeps_state_on_disk(config)) return;
  ::setenv("GOMP_SPINCOUNT", kSpinCount, /*overwrite=*/0);
}

std::vector<std::string> own_words(int argc, char** argv, const std::string& command) {
  std::vector<std::string> words(argv + 1, argv + argc);
  return {std::find(words.begin(), words.end(), command), words.end()};
}

bool started_as_rank() { return read_rank_env(process_env()).world_size > 1; }

int default_ranks(const std::string& device, int on_cpu) {
  const launch::Machine machine = launch::this_machine();
  if (!machine.devices.empty() && device != "cpu") return static_cast<int>(machine.devices.size());
  return std::min(on_cpu, machine.cores);
}

std::string notes_folder(const std::string& run_folder) {
  if (run_folder.empty()) return "";
  return std::filesystem::absolute(run_folder) / doctor::kFolder;
}

int start_ranks(int ranks, std::vector<std::string> words, const CheckRun& check,
                const std::string& notes) {
  const std::string command = "capstan " + launch::shell_join(words);
  launch::Options options;
  if (!notes.empty()) options.extra_env[kNotesVariable] = notes;
  words.insert(words.begin(), engine_path().string());
  options.program.words = std::move(words);
  options.program.python = false;
  options.ranks_per_host = ranks;
  options.grace = kGrace;
  // The ranks write into a pipe; only we know the terminal behind it.
  options.extra_env["CAPSTAN_COLUMNS"] = std::to_string(train::terminal_columns(stdout));
  const launch::Plan plan = launch::make_plan(options, launch::this_machine());
  check(plan.world_size(), plan.launcher != launch::Launcher::slurm);
  launch::RunOptions run_options;
  run_options.prefix = false;
  if (notes.empty()) return launch::run(plan, run_options).exit_code;
  return doctor::run_and_record(plan, run_options, notes, command);
}

}  // namespace capstan::cli
