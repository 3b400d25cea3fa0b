// A group as the MPI thread knows it, and one operation of it. Private to comm/mpi.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/mpi/segment_sum.h"
#include "capstan/comm/mpi/staging.h"
#include "capstan/comm/mpi/transfer_plan.h"
#include "capstan/comm/op.h"
#include "capstan/comm/own_backend.h"

namespace capstan::comm {

using MpiClock = std::chrono::steady_clock;

// What a peer has told about itself since this rank began to wait for it.
struct PeerReport {
  std::int64_t number = 0;  // the last collective it has issued; 0: none
  OpFacts facts;
};

// Owns:    what ranks compare when an operation stalls.
// Threads: `failure` and `stall` under the mutex, from any; what follows them on the
//          MPI thread.
struct MpiGroup {
  MpiGroup(int id_in, std::string name_in, std::vector<int> world_ranks_in, int rank_in)
      : id(id_in),
        name(std::move(name_in)),
        world_ranks(std::move(world_ranks_in)),
        rank(rank_in) {}

  int size() const { return static_cast<int>(world_ranks.size()); }
  Place place() const { return {rank, size()}; }

  const int id;
  const std::string name;
  const std::vector<int> world_ranks;
  const int rank;  // in this group

  std::mutex mutex;
  std::string failure;  // empty: usable
  std::string stall;    // about the oldest operation in flight, once it stalls

  // The last operations of one order: collectives, or sends to (receives from) one peer. Numbers
  // run 1, 2, …
  struct Past {
    struct Entry {
      std::int64_t number = 0;
      OpFacts facts;
    };
    std::array<Entry, 64> entries{};
    std::int64_t last = 0;

    void add(std::int64_t number, const OpFacts& facts) {
      entries[number % entries.size()] = {number, facts};
      last = number;
    }
    // Null when it is not begun yet, or too long ago.
    const OpFacts* find(std::int64_t number) const {
      const Entry& entry = entries[number % entries.size()];
      return entry.number == number && number > 0 ? &entry.facts : nullptr;
    }
  };
  Past collectives;
  std::map<std::pair<OpKind, int>, Past> pairs;  // by send or recv, and the peer
  std::map<int, PeerReport> reports;             // by rank in the group
};

struct MpiOp {
  std::shared_ptr<MpiGroup> group;
  OpFacts facts;
  std::int64_t number = 0;  // among the group's collectives: 1, 2, …; sends and receives: -1, -2, …
  int tag = 0;
  TransferPlan plan;
  std::vector<at::Tensor> tensors;   // alive while MPI may touch their memory, failed or not
  std::unique_ptr<Staging> staging;  // null for host tensors
  c10::intrusive_ptr<OpWork> work;
  MpiClock::time_point issued;

  std::unique_ptr<SegmentSum> sum;  // null but for a reduce-scatter of host tensors

  // On the MPI thread. By direction: the first transfer that is not posted, and how many are posted
  // and not complete.
  std::array<std::size_t, 2> next{};
  std::array<int, 2> in_flight{};
  int stage = 0;                   // the first that is not complete
  std::vector<int> left_in_stage;  // transfers
  bool started = false;
  bool copying_back = false;   // staged outputs are on their way to the device
  bool failed = false;         // the work has its error; what is in flight must still end
  std::string damage;          // a message of the wrong size came: a mismatch to be explained
  MpiClock::time_point asked;  // when peers were last asked about it; epoch: not yet
  MpiClock::time_point first_asked;

  bool all_moved() const { return stage == static_cast<int>(left_in_stage.size()); }
  bool quiet() const { return in_flight[0] == 0 && in_flight[1] == 0; }
};

}  // namespace capstan::comm
