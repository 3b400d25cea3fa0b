// A rank of the tests that need real processes; started by mpirun. Prints one line per fact, with
// its rank, and exits with 0 when all went as it should for this rank, 3 after a CommError.
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/base/guard.h"
#include "capstan/base/rank_env.h"
#include "capstan/comm/mesh_groups.h"
#include "capstan/comm/mpi/mpi.h"
#include "capstan/comm/world.h"
#include "tests/support/comm_cases.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using comm::Group;
using comm::PendingOp;
using comm::World;

constexpr int kExitCommError = 3;

void say(int rank, const std::string& text) {
  // One write, so that lines of several ranks do not mix.
  const std::string line = fmt::format("[{}] {}\n", rank, text);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

std::unique_ptr<World> connect(double timeout_s) {
  comm::Options options;
  options.backend = comm::BackendKind::mpi;
  options.timeout = std::chrono::seconds(static_cast<int>(timeout_s));
  return comm::make_world(read_rank_env(process_env()), options);
}

using Pending = std::vector<PendingOp>;

template <typename... Ops>
Pending together(Ops... ops) {
  Pending all;
  (all.push_back(std::move(ops)), ...);
  return all;
}

void wait_for_all(Pending ops) {
  for (PendingOp& op : ops) op.wait();
}

// An operation large enough to be in flight for a while (16 MiB per rank), by name.
std::function<Pending(Group&)> operation(const std::string& name, const Group& group) {
  const std::int64_t part = 4 << 20;
  const at::Tensor mine = at::ones({part});
  const at::Tensor whole = at::ones({part * group.size()});
  const at::Tensor other = at::ones({part * group.size()});
  if (name == "all_gather") return [=](Group& g) { return together(g.all_gather(whole, mine)); };
  if (name == "reduce_scatter") {
    return [=](Group& g) { return together(g.reduce_scatter(mine, whole)); };
  }
  if (name == "all_reduce") return [=](Group& g) { return together(g.all_reduce(whole)); };
  if (name == "broadcast") return [=](Group& g) { return together(g.broadcast(whole, 0)); };
  if (name == "all_to_all") return [=](Group& g) { return together(g.all_to_all(other, whole)); };
  if (name == "barrier") return [](Group& g) { return together(g.barrier()); };
  if (name == "ring") {
    // Everybody sends to the next rank and receives from the one before.
    return [=](Group& g) {
      PendingOp sent = g.send(whole, (g.rank() + 1) % g.size());
      return together(g.recv(other, (g.rank() + g.size() - 1) % g.size()), std::move(sent));
    };
  }
  throw std::runtime_error("no operation " + name);
}

int run_check(int, char** argv) {
  const auto world = connect(60);
  for (const std::int64_t n : {1, 5, 1000, 30'011}) {
    check_collectives(world->group(), n * std::stoi(argv[2]));
  }
  say(world->env().rank, "ok");
  world->close();
  return 0;
}

// Messages cut into pieces of so many bytes.
int run_chunks(int, char** argv) {
  const auto mpi =
      comm::start_mpi(read_rank_env(process_env()), {.max_message_bytes = std::stoi(argv[2])});
  std::vector<int> everybody(mpi->size());
  std::iota(everybody.begin(), everybody.end(), 0);
  Group group(mpi->make_backend(everybody, "chunks"));
  check_collectives(group, 30'011);
  say(group.rank(), "ok");
  group.barrier().wait();
  mpi->finalize();
  return 0;
}

// Tensors on a GPU that the ranks share; the CUDA part of libtorch is loaded for this mode only.
int run_cuda(int, char**) {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(dlerror());
  }
  const auto world = connect(60);
  for (const std::int64_t n : {1, 1000, 300'011}) {
    check_collectives(world->group(), n, at::Device(at::kCUDA, 0));
  }
  say(world->env().rank, "ok");
  world->close();
  return 0;
}

int run_mesh(int, char**) {
  const auto world = connect(60);
  comm::MeshGroups mesh(layout::Mesh({.shard = 2, .tensor = 2}, 4), world->group(), world.get());
  Group& data = mesh.over(layout::kDataAxes);
  Group& tensor = mesh.over(layout::Axis::tensor);
  check_collectives(data, 100);
  check_collectives(tensor, 100);
  check_collectives(mesh.over(layout::Axis::pipe), 100);
  // Both axes at once: their messages must not meet.
  const at::Tensor a = at::full({1000}, static_cast<double>(world->env().rank));
  const at::Tensor b = a.clone();
  PendingOp over_data = data.all_reduce(a);
  PendingOp over_tensor = tensor.all_reduce(b);
  over_tensor.wait();
  over_data.wait();
  say(world->env().rank,
      fmt::format("data {} tensor {}", a[0].item<double>(), b[0].item<double>()));
  world->close();
  return 0;
}

// Repeats an operation; the victim, if there is one, sends itself a signal in the middle of one.
int run_fail(int, char** argv) {
  const std::string name = argv[2];
  const int victim = std::stoi(argv[3]);
  const int signal = std::stoi(argv[4]);
  const auto world = connect(std::stod(argv[5]));
  Group& group = world->group();
  const auto start = operation(name, group);
  auto begin = Clock::now();
  try {
    for (int i = 0; i < 1000; ++i) {
      begin = Clock::now();
      Pending ops = start(group);
      if (i == 3 && group.rank() == victim) {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        kill(getpid(), signal);
      }
      wait_for_all(std::move(ops));
      if (i == 0 && victim >= group.size()) say(group.rank(), "going");
    }
  } catch (const CommError& error) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    say(world->env().rank, fmt::format("CommError after {:.1f} s: {}", seconds, error.what()));
    std::fflush(stdout);
    return kExitCommError;
  }
  say(world->env().rank, "nothing failed");
  return 1;
}

// Has this process continued after a while, and stops it.
void stop_self_for(double seconds) {
  const std::string wake = fmt::format("sleep {}; kill -CONT {}", seconds, getpid());
  if (fork() == 0) {
    execl("/bin/sh", "sh", "-c", wake.c_str(), nullptr);
    _exit(127);
  }
  kill(getpid(), SIGSTOP);
}

// Stops rank 1 in the middle of each operation, has it continued, and goes on with a new group.
int run_stop(int, char** argv) {
  const double timeout_s = std::stod(argv[2]);
  const auto mpi = comm::start_mpi(read_rank_env(process_env()),
                                   {.stall_after = std::chrono::milliseconds(500)});
  const std::vector<int> everybody = {0, 1, 2, 3};
  Group world(mpi->make_backend(everybody, "world"));
  int failures = 0;
  const std::string names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                               "all_to_all", "ring",           "barrier"};
  for (const std::string& name : names) {
    const auto timeout = std::chrono::milliseconds(static_cast<int>(timeout_s * 1000));
    Group group(mpi->make_backend(everybody, name), {.name = name, .timeout = timeout});
    const auto start = operation(name, group);
    world.barrier().wait();
    const auto begin = Clock::now();
    try {
      Pending ops = start(group);
      if (group.rank() == 1) stop_self_for(timeout_s + 1.5);
      wait_for_all(std::move(ops));
      wait_for_all(start(group));  // a rank that had its part before the stop meets it here
    } catch (const CommError& error) {
      ++failures;
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      say(group.rank(),
          fmt::format("{}: CommError after {:.1f} s: {}", name, seconds, error.what()));
    }
  }
  say(world.rank(), fmt::format("{} of {} operations failed", failures, std::size(names)));
  world.barrier().wait();
  return 0;
}

// Rank 2 does something else than the others; each kind in a group of its own.
void issue_mismatch(Group& group, const std::string& kind) {
  const at::Tensor a = at::ones({1000 * group.size()});
  const at::Tensor b = at::ones({1000 * group.size()});
  const bool odd = group.rank() == 2;
  if (kind == "operation" && odd) {
    group.all_to_all(a, b, "unit 7").wait();
  } else if (kind == "size" && odd) {
    group.reduce_scatter(at::ones({500}), at::ones({500 * group.size()})).wait();
  } else if (kind == "dtype" && odd) {
    group.reduce_scatter(at::ones({1000}), b.to(at::kHalf)).wait();
  } else if (kind == "root") {
    group.broadcast(b, odd ? 2 : 0).wait();
  } else if (kind == "unit") {
    group.all_gather(a, at::ones({1000}), odd ? "unit 8" : "unit 7").wait();
  } else {
    group.reduce_scatter(at::ones({1000}), b, {.label = "unit 7"}).wait();
  }
  group.barrier().wait();
}

int run_mismatch(int, char**) {
  const auto world = connect(60);
  const auto begin = Clock::now();
  for (const std::string kind : {"operation", "size", "dtype", "root", "unit"}) {
    Group group = *world->make_group({0, 1, 2, 3}, kind);
    world->group().barrier().wait();
    try {
      issue_mismatch(group, kind);
    } catch (const CommError& error) {
      say(world->env().rank, fmt::format("{}: CommError: {}", kind, error.what()));
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  say(world->env().rank, seconds < 30 ? "all within seconds" : "too late");
  world->group().barrier().wait();
  return kExitCommError;
}

int run_abort(int, char**) {
  const auto world = connect(60);
  Group& group = world->group();
  if (group.rank() == 1) {
    group.abort("the data file is gone");
    say(world->env().rank, "aborted");
    return kExitCommError;
  }
  const auto begin = Clock::now();
  try {
    group.all_reduce(at::ones({100'000})).wait();
  } catch (const CommError& error) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    say(world->env().rank, fmt::format("CommError after {:.1f} s: {}", seconds, error.what()));
    return kExitCommError;
  }
  return 1;
}

// CPU time of this process while it waits for a late peer, and while nothing is in flight.
int run_idle(int, char**) {
  const auto world = connect(60);
  Group& group = world->group();
  group.barrier().wait();
  const auto cpu_s = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before_wait = cpu_s();
  if (group.rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  group.all_reduce(at::ones({100})).wait();
  const double before_idle = cpu_s();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double after = cpu_s();
  say(world->env().rank, fmt::format("waiting {:.4f} idle {:.4f}", (before_idle - before_wait) / 2,
                                     (after - before_idle) / 2));
  world->close();
  return 0;
}

int body(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> modes = {
      {"check", run_check}, {"chunks", run_chunks}, {"cuda", run_cuda},
      {"mesh", run_mesh},   {"fail", run_fail},     {"stop", run_stop},
      {"abort", run_abort}, {"idle", run_idle},     {"mismatch", run_mismatch}};
  const auto mode = modes.find(argc > 1 ? argv[1] : "");
  return mode == modes.end() ? 64 : mode->second(argc, argv);
}

void report(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::body, argc, argv);
}
