#include "capstan/cli/report/engine_rows.h"

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/report/build_facts.h"
#include "capstan/cli/report/child.h"
#include "capstan/json/reader.h"
#include "capstan/launch/environment.h"
#include "capstan/launch/machine.h"
#include "capstan/launch/network.h"

namespace capstan::cli {
namespace {

// Chosen: many times what a start takes on a loaded machine; only a hang reaches it.
constexpr std::chrono::seconds kLimit{120};

// Ranks of our own on this machine only, whatever job this program was started in.
launch::Environment probe_environment() {
  launch::Environment env = launch::without_launcher_variables(launch::current_environment());
  std::erase_if(env, [](const auto& variable) {
    const std::string& name = variable.first;
    return name.starts_with("OMPI_") || name.starts_with("PMIX_") || name.starts_with("PMI_") ||
           name.starts_with("PRTE_") || name.starts_with("SLURM_");
  });
  env["OMP_NUM_THREADS"] = "1";
  return env;
}

// What the engine's own error report says after its label, or empty.
std::string part_of_error(const std::string& text, std::string_view label) {
  for (const std::string& line : split(text, '\n')) {
    const std::string_view words = trim(line);
    const std::size_t at = words.find(label);
    if (at != std::string_view::npos) return std::string(trim(words.substr(at + label.size())));
  }
  return {};
}

Row failed_child(Row row, const ChildResult& result, const std::string& fix) {
  row.state = RowState::failed;
  const std::string what = part_of_error(result.err, "error:");
  row.value = what.empty() ? last_words(result) : what;
  const std::string told = part_of_error(result.err, "fix:");
  row.fix = told.empty() ? fix : told;
  return row;
}

std::vector<Row> library_rows(const std::string& engine, const launch::Environment& env) {
  const ChildResult result = run_child({engine, "facts"}, env, kLimit);
  if (result.succeeded()) return rows_from_json(json::read(result.out, "capstan-engine facts"));
  const Row row{.section = "libraries", .name = "libtorch", .basic = true};
  return {failed_child(row, result, engine_fix())};
}

Row loopback_row(const std::string& engine, const launch::Environment& env) {
  const ChildResult result = run_child({engine, "probe", "loopback"}, env, kLimit);
  Row row{.section = "backends", .name = "loopback", .basic = true};
  if (!result.succeeded()) return failed_child(row, result, engine_fix());
  row.value = std::string(trim(result.out));
  return row;
}

Row mpi_row(const std::string& engine, const std::string& mpirun, const launch::Environment& env) {
  Row row{.section = "backends", .name = "mpi", .state = RowState::missing};
  if (build_facts().mpi_standard.empty()) {
    row.value = "not in this build";
    row.fix = "apt-get install libopenmpi-dev openmpi-bin, then make build";
    return row;
  }
  if (mpirun.empty()) {
    row.value = "no mpirun in PATH";
    row.fix = "apt-get install openmpi-bin";
    return row;
  }
  // As `capstan launch` and `capstan train` start ranks, with whatever that takes on this machine.
  const std::vector<std::string> command = {launch::this_machine().self,
                                            "launch",
                                            "-n",
                                            "2",
                                            "--launcher",
                                            "mpi",
                                            "--no_prefix",
                                            "--no_python",
                                            engine,
                                            "probe",
                                            "mpi"};
  const ChildResult result = run_child(command, env, kLimit);
  row.state = RowState::ok;
  if (!result.succeeded()) {
    return failed_child(row, result, "see its whole output: " + launch::shell_join(command));
  }
  row.value = std::string(trim(result.out));
  return row;
}

// One rank per GPU; the first one's answer counts, unless another one failed.
ChildResult run_nccl_ranks(const std::string& engine, launch::Environment env, int ranks) {
  const launch::HeldPort port;
  env["MASTER_ADDR"] = "127.0.0.1";
  env["MASTER_PORT"] = std::to_string(port.number());
  env["WORLD_SIZE"] = env["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  std::vector<std::future<ChildResult>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    env["RANK"] = env["LOCAL_RANK"] = std::to_string(rank);
    children.push_back(std::async(std::launch::async, [engine, env] {
      return run_child({engine, "probe", "nccl"}, env, kLimit);
    }));
  }
  ChildResult answer;
  for (int rank = 0; rank < ranks; ++rank) {
    ChildResult result = children[static_cast<std::size_t>(rank)].get();
    if (rank == 0 || (answer.succeeded() && !result.succeeded())) answer = std::move(result);
  }
  return answer;
}

Row nccl_row(const std::string& engine, const launch::Environment& env, int gpu_count) {
  Row row{.section = "backends", .name = "nccl", .state = RowState::missing};
  if (gpu_count == 0) {
    row.value = "not tried: there is no GPU; CPU ranks use mpi";
    return row;
  }
  if (!build_facts().nccl || build_facts().cuda_compiler.empty()) {
    row.value = "not in this build";
    row.fix =
        "use a torch wheel with CUDA and a CUDA 13 compiler (or CUDA=wheels), then make build";
    return row;
  }
  const ChildResult result = run_nccl_ranks(engine, env, gpu_count);
  row.state = RowState::ok;
  if (!result.succeeded()) {
    return failed_child(row, result, "see what NCCL says: NCCL_DEBUG=INFO capstan report");
  }
  row.value = std::string(trim(result.out));
  return row;
}

Row mpi_version_row(const std::string& mpirun, const launch::Environment& env) {
  Row row{.section = "libraries", .name = "MPI", .state = RowState::missing};
  if (mpirun.empty()) {
    row.value = "no mpirun in PATH";
    row.fix = "apt-get install openmpi-bin";
    return row;
  }
  const ChildResult result = run_child({mpirun, "--version"}, env, kLimit);
  row.state = RowState::ok;
  if (!result.succeeded()) return failed_child(row, result, "apt-get install openmpi-bin");
  row.value = fmt::format("{} in {}", split(result.out, '\n').front(), mpirun);
  return row;
}

std::vector<Row> no_engine_rows(const std::filesystem::path& engine) {
  return {{.section = "libraries",
           .name = "capstan-engine",
           .state = RowState::failed,
           .value = fmt::format("not found: {}", engine.string()),
           .fix = engine_fix(),
           .basic = true}};
}

}  // namespace

std::vector<Row> engine_rows(int gpu_count) {
  const std::filesystem::path path = engine_path();
  if (::access(path.c_str(), X_OK) != 0) return no_engine_rows(path);
  const std::string engine = path.string();
  const launch::Environment env = probe_environment();
  const std::string mpirun = launch::find_program("mpirun", env);
  auto libraries = std::async(std::launch::async, [&] { return library_rows(engine, env); });
  auto loopback = std::async(std::launch::async, [&] { return loopback_row(engine, env); });
  auto mpi = std::async(std::launch::async, [&] { return mpi_row(engine, mpirun, env); });
  auto nccl = std::async(std::launch::async, [&] { return nccl_row(engine, env, gpu_count); });
  const Row mpi_version = mpi_version_row(mpirun, env);
  std::vector<Row> rows = libraries.get();
  rows.push_back(mpi_version);
  rows.push_back(loopback.get());
  rows.push_back(mpi.get());
  rows.push_back(nccl.get());
  return rows;
}

}  // namespace capstan::cli
