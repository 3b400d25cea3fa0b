// libtorch's NCCL backend: one GPU per rank, rendezvous through libtorch's TCPStore.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "capstan/base/rank_env.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace capstan::comm {

class SideChannel;

// This process among the ranks of a job, found through the store of rank 0 at
// master_addr:master_port.
// Threads: one at a time.
class Nccl {
 public:
  virtual ~Nccl() = default;
  // A group of some ranks of the world; null where this rank is not among them. The communicator
  // itself is made by the first operation.
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(const std::vector<int>& world_ranks,
                                                         const std::string& name) = 0;
  // Where the ranks of the group `name` compare notes.
  virtual std::shared_ptr<SideChannel> make_side_channel(const std::string& name) = 0;
};

// Waits up to `timeout` for the store. Throws ConfigError when this build has no NCCL, when this
// rank has no GPU of its own or no address is given, CommError when the store does not answer.
std::unique_ptr<Nccl> start_nccl(const RankEnv& env, std::chrono::milliseconds timeout);

}  // namespace capstan::comm
