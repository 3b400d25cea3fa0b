#include "capstan/comm/connect_store.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "capstan/base/error.h"

namespace capstan::comm {
namespace {

// torchrun keeps its own store at the same address; its ranks are all clients of that one.
bool launcher_serves_store() {
  const auto served = process_env()("TORCHELASTIC_USE_AGENT_STORE");
  return served && *served == "True";
}

// In our words: libtorch's have its sources and a stack of calls in them.
CommError no_store(const RankEnv& env, const std::string& host, const c10d::TCPStoreOptions& how) {
  if (how.isServer) {
    return CommError(
        {.what = fmt::format("rank 0 cannot open port {}, where the ranks should meet", how.port),
         .where = "comm: the store of the ranks",
         .fix = "find out whether another run uses this port, or give this one another MASTER_PORT "
                "(--master_port of capstan launch and of torchrun)"});
  }
  const std::chrono::duration<double> waited(how.timeout);
  return CommError(
      {.what = fmt::format("rank {} found nobody at {}:{} within {:.1f} s", env.rank, host,
                           how.port, waited.count()),
       .where = "comm: the store of the ranks",
       .fix = "check that rank 0 is running and that this machine can reach it: MASTER_ADDR and "
              "MASTER_PORT must be the same on all ranks, and no firewall may close that port"});
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const RankEnv& env,
                                              std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<std::uint16_t>(env.master_port);
  how.isServer = env.rank == 0 && !launcher_serves_store();
  how.numWorkers = env.world_size;
  how.waitWorkers = false;
  how.timeout = timeout;
  const std::string host = env.world_size == 1 ? "127.0.0.1" : env.master_addr;
  try {
    return c10::make_intrusive<c10d::PrefixStore>("capstan",
                                                  c10::make_intrusive<c10d::TCPStore>(host, how));
  } catch (const std::exception&) {
    throw no_store(env, host, how);
  }
}

}  // namespace capstan::comm
