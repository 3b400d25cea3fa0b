// All ranks of a job, and the groups made of them: the place where a backend is chosen.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/base/rank_env.h"
#include "capstan/comm/group_maker.h"
#include "capstan/comm/options.h"

namespace capstan::comm {

class Nccl;

// Owns:    the connection to the peers; outlives the groups made from it.
// Threads: one at a time.
// Ranks:   every rank makes groups in the same order; the n-th group of each rank is the same, or
//          has no rank in common with the others.
class World : public GroupMaker {
 public:  // the destructor communicates nothing: see close()
  virtual const RankEnv& env() const = 0;
  virtual BackendKind backend() const = 0;
  virtual Group& group() = 0;  // all ranks, in order

  // Some ranks, in the order given; empty where this rank is not among them.
  virtual std::optional<Group> make_group(std::vector<int> ranks, const std::string& name) = 0;
  Group make_parts(const std::vector<std::vector<int>>& parts, const std::string& name) override;

  // Leaves in order: waits for all ranks, then ends the backend. After a CommError it only ends
  // what is local. Throws CommError when a peer does not come.
  virtual void close() = 0;
};

// start_nccl() of comm/nccl/nccl.h. Handed in by programs that link it: it brings libtorch's CUDA
// libraries along, which take a second to load and which CPU ranks do not need.
using StartNccl = std::unique_ptr<Nccl> (*)(const RankEnv& env, std::chrono::milliseconds timeout);

// Connects this process with its peers over options.backend; where that is unset, nccl when every
// local rank has a GPU of its own and the program has start_nccl, no transport at all for a world
// of one, mpi for the rest. Throws ConfigError when that cannot be.
std::unique_ptr<World> make_world(const RankEnv& env, const Options& options = {},
                                  StartNccl start_nccl = nullptr);

}  // namespace capstan::comm
