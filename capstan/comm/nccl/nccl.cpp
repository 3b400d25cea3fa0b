#include "capstan/comm/nccl/nccl.h"

#include <algorithm>

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "capstan/base/error.h"
#include "capstan/comm/connect_store.h"
#include "capstan/comm/side_channel.h"

namespace capstan::comm {
namespace {

constexpr const char* kWhere = "comm: backend nccl";

class NcclProcess final : public Nccl {
 public:
  NcclProcess(const RankEnv& env, std::chrono::milliseconds timeout)
      : rank_(env.rank),
        device_(c10::kCUDA, static_cast<c10::DeviceIndex>(env.local_rank)),
        timeout_(timeout),
        store_(connect_store(env, timeout)) {}

  c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& world_ranks,
                                                 const std::string& name) override {
    const int id = ++groups_made_;  // groups may share a name
    const auto me = std::ranges::find(world_ranks, rank_);
    if (me == world_ranks.end()) {
      return nullptr;
    }
    auto options = c10d::ProcessGroupNCCL::Options::create();
    // Its own watchdog ends the process; ours, which reports, comes first.
    options->timeout = timeout_ + std::chrono::seconds(60);
    options->group_name = name;
    options->global_ranks_in_group.assign(world_ranks.begin(), world_ranks.end());
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}.{}.{}", name, id, world_ranks[0]),
                                               store_),
        static_cast<int>(me - world_ranks.begin()), static_cast<int>(world_ranks.size()),
        std::move(options));
    backend->setBoundDeviceId(device_);
    return backend;
  }

  std::shared_ptr<SideChannel> make_side_channel(const std::string& name) override {
    return make_store_channel(store_, fmt::format("notes.{}.{}.", name, groups_made_));
  }

 private:
  const int rank_;
  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const c10::intrusive_ptr<c10d::Store> store_;
  int groups_made_ = 0;
};

}  // namespace

std::unique_ptr<Nccl> start_nccl(const RankEnv& env, std::chrono::milliseconds timeout) {
  const int devices = static_cast<unsigned char>(c10::cuda::device_count());
  if (env.local_rank >= devices) {
    throw ConfigError(
        {.what = fmt::format("local rank {} of {} has no GPU of its own: there are {}",
                             env.local_rank, env.local_world_size, devices),
         .where = kWhere,
         .fix = "start one rank per GPU; to share a GPU between ranks use the backend mpi"});
  }
  if (env.master_port == 0 && env.world_size > 1) {
    throw ConfigError({.what = "the address where the ranks should meet is not known",
                       .where = kWhere,
                       .fix = "start the ranks with `capstan launch` or torchrun, or set "
                              "MASTER_ADDR and MASTER_PORT"});
  }
  return std::make_unique<NcclProcess>(env, timeout);
}

}  // namespace capstan::comm
