#include "capstan/base/rank_env.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/host_list.h"

namespace capstan {
namespace {

// Reads numbers by name; the first name that is set wins.
class EnvNumbers {
 public:
  explicit EnvNumbers(const GetEnv& get) : get_(get) {}

  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = get_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<std::int64_t> number(const std::string& name) const {
    const std::optional<std::string> value = text(name);
    if (!value) return {};
    std::int64_t parsed = 0;
    const char* const end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc{} || stop != end || parsed < 0) fail(name, *value);
    return parsed;
  }

  template <typename... Names>
  std::optional<int> first(const Names&... names) const {
    std::optional<int> found;
    const auto take = [&](const std::string& name) {
      if (found) return;
      const std::optional<std::int64_t> value = number(name);
      if (!value) return;
      if (*value > std::numeric_limits<int>::max()) fail(name, std::to_string(*value));
      found = static_cast<int>(*value);
    };
    (take(names), ...);
    return found;
  }

 private:
  [[noreturn]] static void fail(const std::string& name, const std::string& value) {
    throw ConfigError({.what = fmt::format("{}=\"{}\" is not a usable whole number", name, value),
                       .where = fmt::format("environment variable {}", name),
                       .fix = fmt::format("unset {}, or let a launcher set it", name)});
  }

  const GetEnv& get_;
};

std::optional<int> mpi_rank(const EnvNumbers& env) {
  return env.first("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK");
}

// PMIx names no size in the environment; under srun the step's own count is the size.
std::optional<int> mpi_size(const EnvNumbers& env) {
  return env.first("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS");
}

// SLURM_STEP_NUM_TASKS is there only inside srun; a batch script has SLURM_PROCID=0 but no peers.
bool in_slurm_step(const EnvNumbers& env) {
  return env.has("SLURM_PROCID") && env.has("SLURM_STEP_NUM_TASKS");
}

void read_master(const EnvNumbers& env, RankEnv& out) {
  if (const auto addr = env.text("MASTER_ADDR")) out.master_addr = *addr;
  if (const auto port = env.first("MASTER_PORT")) out.master_port = *port;
}

// Equal ranks per host are assumed where the launcher does not say which host this is.
void guess_node(RankEnv& out) {
  if (out.local_world_size <= 0) return;
  out.node_count = (out.world_size + out.local_world_size - 1) / out.local_world_size;
  out.node_rank = out.rank / out.local_world_size;
}

RankEnv from_rank_variables(const EnvNumbers& env) {
  const bool by_capstan = env.has("CAPSTAN_LAUNCHER");
  RankEnv out;
  out.launcher = env.has("TORCHELASTIC_RUN_ID") ? "torchrun"
                 : by_capstan                   ? "capstan"
                                                : "environment";
  out.rank = env.first("RANK").value_or(0);
  out.world_size = env.first("WORLD_SIZE").value_or(1);
  out.local_rank = env.first("LOCAL_RANK").value_or(0);
  // Without a LOCAL_RANK it is one process per machine (a pod); with one, a single machine.
  out.local_world_size = env.first("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
                             .value_or(env.has("LOCAL_RANK") ? out.world_size : 1);
  guess_node(out);
  out.node_rank = env.first("GROUP_RANK", "CROSS_RANK").value_or(out.node_rank);
  out.node_count = env.first("GROUP_WORLD_SIZE", "CROSS_SIZE").value_or(out.node_count);
  read_master(env, out);
  return out;
}

RankEnv from_slurm(const EnvNumbers& env) {
  RankEnv out;
  out.launcher = "slurm";
  out.rank = env.first("SLURM_PROCID").value_or(0);
  out.world_size = env.first("SLURM_STEP_NUM_TASKS").value_or(1);
  out.local_rank = env.first("SLURM_LOCALID").value_or(0);
  out.node_rank = env.first("SLURM_NODEID").value_or(0);
  out.node_count = env.first("SLURM_STEP_NUM_NODES").value_or(1);
  out.local_world_size = out.local_rank + 1;
  if (const auto text = env.text("SLURM_STEP_TASKS_PER_NODE")) {
    const std::vector<int> counts = expand_counts(*text, "SLURM_STEP_TASKS_PER_NODE");
    const auto node = static_cast<std::size_t>(out.node_rank);
    if (node < counts.size()) out.local_world_size = counts[node];
  }
  if (const auto text = env.text("SLURM_STEP_NODELIST")) {
    out.master_addr = expand_host_list(*text, "SLURM_STEP_NODELIST").front();
  }
  if (const auto job = env.number("SLURM_JOB_ID")) {
    // Every rank must name the same port without talking to the others. Below the ephemeral
    // range, so that no outgoing connection holds it; steps of one job differ by one.
    const std::int64_t step = env.number("SLURM_STEP_ID").value_or(0);
    out.master_port = static_cast<int>(10000 + (*job * 16 + step) % 20000);
  }
  read_master(env, out);
  return out;
}

RankEnv from_mpi(const EnvNumbers& env) {
  RankEnv out;
  if (in_slurm_step(env) && !env.has("OMPI_COMM_WORLD_RANK")) {
    out = from_slurm(env);
  } else {
    out.launcher = "mpirun";
    out.local_rank =
        env.first("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID").value_or(0);
    out.local_world_size =
        env.first("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS").value_or(out.local_rank + 1);
    read_master(env, out);
  }
  out.rank = mpi_rank(env).value_or(0);
  out.world_size = mpi_size(env).value_or(1);
  if (out.launcher == "mpirun") guess_node(out);
  if (env.has("CAPSTAN_LAUNCHER")) out.launcher = "capstan";
  return out;
}

void check(const RankEnv& out) {
  const auto outside = [](int index, int count) { return count < 1 || index >= count; };
  std::string what;
  if (outside(out.rank, out.world_size)) {
    what = fmt::format("rank {} of {} ranks", out.rank, out.world_size);
  } else if (outside(out.local_rank, out.local_world_size)) {
    what = fmt::format("local rank {} of {} local ranks", out.local_rank, out.local_world_size);
  } else if (outside(out.node_rank, out.node_count)) {
    what = fmt::format("node {} of {} nodes", out.node_rank, out.node_count);
  } else if (out.master_port > 65535) {
    what = fmt::format("MASTER_PORT is {}, but the largest port is 65535", out.master_port);
  }
  if (what.empty()) return;
  throw ConfigError({.what = "the environment says " + what,
                     .where = fmt::format("environment variables of {}", out.launcher),
                     .fix = "start with capstan launch, torchrun, mpirun or srun, which set them "
                            "together; or unset RANK, WORLD_SIZE and LOCAL_RANK"});
}

}  // namespace

GetEnv process_env() {
  return [](const std::string& name) -> std::optional<std::string> {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing of ours changes the environment.
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return {};
    return std::string(value);
  };
}

RankEnv read_rank_env(const GetEnv& get) {
  const EnvNumbers env(get);
  const bool has_rank = env.has("RANK");
  if (has_rank != env.has("WORLD_SIZE") && env.has("LOCAL_RANK")) {
    throw ConfigError(
        {.what = fmt::format("{} is set but {} is not", has_rank ? "RANK" : "WORLD_SIZE",
                             has_rank ? "WORLD_SIZE" : "RANK"),
         .where = "environment variables RANK and WORLD_SIZE",
         .fix = "set both, or neither"});
  }
  const bool has_mpi = mpi_rank(env) && mpi_size(env);
  const bool has_both = has_rank && env.has("WORLD_SIZE");
  // A bare RANK beside an MPI or SLURM world describes the outer container, not this process.
  const bool by_variables =
      has_both && (env.has("LOCAL_RANK") || (!has_mpi && !in_slurm_step(env)));
  RankEnv out;
  if (by_variables) {
    out = from_rank_variables(env);
  } else if (has_mpi) {
    out = from_mpi(env);
  } else if (in_slurm_step(env)) {
    out = from_slurm(env);
  }
  // torchrun's workers inherit the MPI variables of the process that ran torchrun.
  out.mpi_started = has_mpi && out.launcher != "torchrun" && mpi_rank(env) == out.rank &&
                    mpi_size(env) == out.world_size;
  if (!by_variables && !has_mpi) read_master(env, out);
  check(out);
  return out;
}

}  // namespace capstan
