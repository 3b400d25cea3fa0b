// A c10d::Backend over MPI-3, for ranks that mpirun or srun --mpi=… started.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "capstan/base/rank_env.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace capstan::comm {

struct MpiOptions {
  // MPI counts in int. One message carries at most this; settable so that tests reach the cut.
  std::int64_t max_message_bytes = std::int64_t{1} << 30;
  // A reduce-scatter arrives in pieces of this size, each added while it is in the processor's
  // cache. Equal on all ranks.
  std::int64_t segment_bytes = 256 << 10;
  // An operation in flight for longer makes ranks compare notes, to find a mismatch.
  std::chrono::milliseconds stall_after{1000};
};

// MPI in this process.
// Owns:    the one thread that makes all MPI calls; it sleeps while there is nothing to move.
// Threads: any.
class Mpi {
 public:
  virtual ~Mpi() = default;  // stops the thread; communicates nothing

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A group of some ranks of the world, in this order; null where this rank is not among them.
  // Ranks: the n-th group that each rank makes is the same, or has no rank in common with the
  //        others. Nothing is sent.
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(std::vector<int> world_ranks,
                                                         std::string name) = 0;
  // MPI_Finalize, unless a group has failed: a dead peer would hang it.
  // Ranks: collective; after the last operation of every group.
  virtual void finalize() = 0;
};

// Throws ConfigError when no MPI launcher started this process, when MPI is in use already in a way
// that excludes us, or when this build has no MPI. Once per process.
std::shared_ptr<Mpi> start_mpi(const RankEnv& env, MpiOptions options = {});

}  // namespace capstan::comm
