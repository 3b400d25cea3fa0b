// capstan-engine probe BACKEND: starts the backend, adds up a tensor over its ranks and checks the
// sum. capstan-engine probe copy: measures how fast bytes leave the device that would train.
#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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

// The best of some copies of one large block: from a GPU to page-locked memory, else within the
// host's by one thread.
int probe_copy() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  constexpr int kRounds = 5;
  const bool on_gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  const c10::Device device = on_gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  const at::Tensor from = at::full({kBytes}, 7, at::TensorOptions(at::kByte).device(device));
  const at::Tensor into = at::empty({kBytes}, at::TensorOptions(at::kByte).pinned_memory(on_gpu));
  at::set_num_threads(1);
  double best = 0;
  for (int round = -1; round < kRounds; ++round) {  // the first one touches the memory
    const auto began = std::chrono::steady_clock::now();
    into.copy_(from, /*non_blocking=*/on_gpu);
    if (on_gpu) c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device).synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (round >= 0) best = std::max(best, static_cast<double>(kBytes) / 1e9 / took.count());
  }
  fmt::print("{:.1f} GB/s from {} to {} memory\n", best, device.str(),
             on_gpu ? "page-locked" : "host");
  return 0;
}

}  // namespace

void add_probe_command(CLI::App& app, int& exit_code) {
  CLI::App* probe = app.add_subcommand("probe", "Start a backend and check a sum over its ranks");
  probe->require_subcommand(1);
  probe->add_subcommand("copy", "Bytes from the device to host memory")->callback([&exit_code] {
    exit_code = probe_copy();
  });
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
