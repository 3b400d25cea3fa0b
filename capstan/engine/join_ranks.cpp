#include "capstan/engine/join_ranks.h"

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::engine {

std::optional<comm::BackendKind> backend_for(c10::Device device, int ranks, const Options& options,
                                             bool has_nccl) {
  if (options.comm.backend.has_value()) return options.comm.backend;
  if (device.is_cpu()) return ranks == 1 ? comm::BackendKind::loopback : comm::BackendKind::mpi;
  if (ranks == 1) return std::nullopt;
  if (has_nccl) return comm::BackendKind::nccl;
  throw ConfigError(
      {.what = fmt::format("the model is on {}, one of {} ranks, but the program has no NCCL to "
                           "join them with",
                           device.str(), ranks),
       .where = "engine::Parts::start_nccl",
       .fix = fmt::format("link capstan::comm_nccl and set Parts::start_nccl to "
                          "&capstan::comm::start_nccl, or set {} to mpi, which is slower",
                          options.names("comm.backend"))});
}

std::unique_ptr<comm::World> join_ranks(c10::Device device, const Options& options,
                                        comm::StartNccl start_nccl) {
  const RankEnv env = read_rank_env(process_env());
  comm::Options how = options.comm;
  how.backend = backend_for(device, env.world_size, options, start_nccl != nullptr);
  return comm::make_world(env, how, start_nccl);
}

}  // namespace capstan::engine
