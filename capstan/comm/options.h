// How ranks talk: which backend, how long to wait for a peer, how gradients are averaged.
#pragma once

#include <chrono>
#include <optional>

namespace capstan::comm {

enum class BackendKind { nccl, mpi, loopback };

enum class ReduceOp { mean, sum };

struct Options {
  std::optional<BackendKind> backend;  // unset: nccl for GPU ranks, mpi for CPU ranks
  // A collective that is not done by then is an error on every rank. Longer tolerates slow peers
  // (a first compilation, a slow disk); shorter reports a dead one sooner.
  std::chrono::seconds timeout{600};
  bool reduce_in_rank_order = true;  // nccl: same bits in every run, but no use of its own rings
  // > 1: gradients are summed inside of blocks of so many ranks, then over the blocks: the bits of
  // shard groups (shard::Options::shard_ranks) without having them.
  int reduce_in_blocks_of = 1;
  ReduceOp reduce_op =
      ReduceOp::mean;               // sum leaves the division by the number of ranks to the caller
  bool prescale_gradients = false;  // divide before the sum: no overflow in fp16, more underflow
  double predivide_factor = 1.0;    // divide by this before the sum and by ranks / this after it
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::comm
