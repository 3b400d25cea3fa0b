#include "capstan/comm/world.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/comm/loopback/loopback.h"
#include "capstan/comm/mpi/mpi.h"
#include "capstan/comm/nccl/nccl.h"
#include "capstan/comm/side_channel.h"
#include "capstan/device/facts.h"
#include "capstan/profile/event_clock.h"

namespace capstan::comm {
namespace {

// What differs between the three ways to reach the peers.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& ranks,
                                                         const std::string& name) = 0;
  virtual std::shared_ptr<SideChannel> make_side_channel(const std::string&) { return nullptr; }
  // healthy: nothing failed, so the peers are there to say goodbye to.
  virtual void close(bool /*healthy*/) {}
};

class Alone final : public Connection {
 public:
  c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& ranks,
                                                 const std::string&) override {
    return ranks == std::vector{0} ? make_loopback(make_loopback_hub(1), 0) : nullptr;
  }
};

class OverMpi final : public Connection {
 public:
  OverMpi(const RankEnv& env, std::chrono::milliseconds timeout)
      : mpi_(start_mpi(env, {.stall_after = std::min(MpiOptions{}.stall_after, timeout / 4)})) {
    if (mpi_->rank() != env.rank || mpi_->size() != env.world_size) {
      throw ConfigError(
          {.what = fmt::format("the environment says rank {} of {}, MPI says rank {} of {}",
                               env.rank, env.world_size, mpi_->rank(), mpi_->size()),
           .where = "comm: backend mpi",
           .fix = "start the ranks with one launcher only, and unset RANK and WORLD_SIZE"});
    }
  }
  c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& ranks,
                                                 const std::string& name) override {
    return mpi_->make_backend(ranks, name);
  }
  void close(bool /*healthy*/) override { mpi_->finalize(); }

 private:
  const std::shared_ptr<Mpi> mpi_;
};

class OverNccl final : public Connection {
 public:
  explicit OverNccl(std::unique_ptr<Nccl> nccl) : nccl_(std::move(nccl)) {}
  c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& ranks,
                                                 const std::string& name) override {
    const auto backend = nccl_->make_backend(ranks, name);
    if (backend) backends_.push_back(backend);
    return backend;
  }
  std::shared_ptr<SideChannel> make_side_channel(const std::string& name) override {
    return nccl_->make_side_channel(name);
  }

  void close(bool healthy) override {
    if (!healthy) return;
    for (const auto& backend : backends_) backend->shutdown();
  }

 private:
  const std::unique_ptr<Nccl> nccl_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
};

BackendKind choose_backend(const RankEnv& env, const Options& options, StartNccl start_nccl) {
  if (options.backend) {
    return *options.backend;
  }
  const auto devices = static_cast<int>(device::list_devices().size());
  const bool can_meet = env.master_port != 0 || env.world_size == 1;
  if (start_nccl != nullptr && devices >= env.local_world_size && can_meet) {
    return BackendKind::nccl;
  }
  return env.world_size == 1 ? BackendKind::loopback : BackendKind::mpi;
}

std::unique_ptr<Connection> connect(BackendKind kind, const RankEnv& env, const Options& options,
                                    StartNccl start_nccl) {
  switch (kind) {
    case BackendKind::mpi:
      return std::make_unique<OverMpi>(env, options.timeout);
    case BackendKind::nccl:
      if (start_nccl == nullptr) {
        throw ConfigError({.what = "this program was built without NCCL",
                           .where = "comm: backend nccl",
                           .fix = "use a program that was built with it, or the backend mpi"});
      }
      return std::make_unique<OverNccl>(start_nccl(env, options.timeout));
    case BackendKind::loopback:
      break;
  }
  if (env.world_size != 1) {
    throw ConfigError({.what = fmt::format("loopback connects threads of one process, but there "
                                           "are {} processes",
                                           env.world_size),
                       .where = "comm: backend loopback",
                       .fix = "use mpi or nccl, or start one process"});
  }
  return std::make_unique<Alone>();
}

class ConnectedWorld final : public World {
 public:
  ConnectedWorld(const RankEnv& env, const Options& options, StartNccl start_nccl)
      : env_(env),
        options_(options),
        kind_(choose_backend(env, options, start_nccl)),
        connection_(connect(kind_, env, options, start_nccl)) {
    std::vector<int> everybody(env.world_size);
    std::iota(everybody.begin(), everybody.end(), 0);
    group_.emplace(make_group(everybody, "world").value());
  }

  const RankEnv& env() const override { return env_; }
  BackendKind backend() const override { return kind_; }
  Group& group() override { return group_.value(); }

  std::optional<Group> make_group(std::vector<int> ranks, const std::string& name) override {
    const auto backend = connection_->make_backend(ranks, name);
    if (!backend) {
      return std::nullopt;
    }
    GroupOptions how{.name = name, .timeout = options_.timeout};
    how.reduction = options_.reduce_in_rank_order ? Reduction::ordered : Reduction::native;
    how.side_channel = connection_->make_side_channel(name);
    how.recorder = recorder_;
    return Group(backend, std::move(how));
  }

  void close() override {
    Group& all = group();
    const bool healthy = !all.failed();
    if (healthy) {
      all.barrier("close").wait();
      all.close();
    }
    connection_->close(healthy);
  }

 private:
  const RankEnv env_;
  const Options options_;
  const BackendKind kind_;
  const std::unique_ptr<Connection> connection_;
  const std::shared_ptr<profile::Recorder> recorder_ = profile::make_recorder();
  std::optional<Group> group_;
};

}  // namespace

// Parts have no rank in common, so each rank makes its own only.
Group World::make_parts(const std::vector<std::vector<int>>& parts, const std::string& name) {
  const int rank = group().rank();
  const auto mine = std::ranges::find_if(
      parts, [rank](const auto& part) { return std::ranges::find(part, rank) != part.end(); });
  return make_group(*mine, name).value();
}

std::unique_ptr<World> make_world(const RankEnv& env, const Options& options,
                                  StartNccl start_nccl) {
  return std::make_unique<ConnectedWorld>(env, options, start_nccl);
}

}  // namespace capstan::comm
