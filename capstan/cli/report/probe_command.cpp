// capstan-engine probe BACKEND: starts the backend, adds up a tensor over its ranks and checks the
// sum.
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/cli/command.h"
#include "capstan/cli/engine_nccl.h"
#include "capstan/comm/group.h"
#include "capstan/comm/loopback/loopback.h"
#include "capstan/comm/world.h"

namespace capstan::cli {
namespace {

constexpr std::chrono::seconds kProbeTimeout{90};

comm::GroupOptions group_options(const std::string& name) {
  return {.name = name, .timeout = kProbeTimeout};
}

// Every rank brings its rank + 1; throws InternalError unless all see the sum.
void check_sum(comm::Group& group, at::Device device) {
  const at::Tensor values =
      at::full({1024}, group.rank() + 1, at::TensorOptions().dtype(at::kFloat).device(device));
  group.all_reduce(values).wait();
  const float expected = static_cast<float>(group.size() * (group.size() + 1)) / 2;
  const float seen = values[1023].item<float>();
  if (seen != expected) {
    throw InternalError(
        {.what = fmt::format("{} ranks added up to {} instead of {}", group.size(), seen, expected),
         .where = "all_reduce over " + group.name()});
  }
}

int probe_loopback() {
  constexpr int kRanks = 2;
  const auto hub = comm::make_loopback_hub(kRanks);
  std::vector<std::exception_ptr> failures(kRanks);
  std::vector<std::thread> threads;
  threads.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::Group group(comm::make_loopback(hub, rank), group_options("loopback"));
        check_sum(group, at::kCPU);
        group.close();
      } catch (...) {  // the boundary of the thread: rethrown below
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  fmt::print("{} ranks as threads, all_reduce checked\n", kRanks);
  return 0;
}

// One rank of the world that this process was started into.
int probe_world(comm::BackendKind kind, const std::string& name) {
  const RankEnv env = read_rank_env(process_env());
  const auto world =
      comm::make_world(env, {.backend = kind, .timeout = kProbeTimeout}, engine_nccl());
  const bool on_gpu = kind == comm::BackendKind::nccl;
  check_sum(world->group(),
            on_gpu ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(env.local_rank))
                   : at::Device(at::kCPU));
  world->close();
  if (env.rank == 0) {
    fmt::print("{} {} over {}, all_reduce checked\n", env.world_size,
               env.world_size == 1 ? "rank" : "ranks", name);
  }
  return 0;
}

}  // namespace

void add_probe_command(CLI::App& app, int& exit_code) {
  CLI::App* probe = app.add_subcommand("probe", "Start a backend and check a sum over its ranks");
  probe->require_subcommand(1);
  probe->add_subcommand("loopback", "Ranks as threads")->callback([&exit_code] {
    exit_code = probe_loopback();
  });
  probe->add_subcommand("mpi", "Processes that mpirun started")->callback([&exit_code] {
    exit_code = probe_world(comm::BackendKind::mpi, "mpi");
  });
  probe->add_subcommand("nccl", "One rank per GPU")->callback([&exit_code] {
    exit_code = probe_world(comm::BackendKind::nccl, "nccl");
  });
}

}  // namespace capstan::cli
