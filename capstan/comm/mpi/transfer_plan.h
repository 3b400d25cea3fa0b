// Collectives as lists of point-to-point transfers: pure arithmetic over addresses, no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan::comm {

enum class Direction : std::uint8_t { send, recv };

// One message. Transfers of a stage start only when all of the stage before are done.
struct Transfer {
  Direction direction = Direction::send;
  int peer = 0;  // rank in the group
  int stage = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  int segment = -1;             // a receive that waits for room: see SegmentSum
  bool until_received = false;  // a send that is over only when the peer has begun to receive
  bool operator==(const Transfer&) const = default;
};

struct LocalCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::int64_t bytes = 0;
};

// Sends and receives of a stage are started independently of each other. Between any two ranks, the
// sends of one and the receives of the other come in the same order and with the same sizes: that
// is how they find each other.
struct TransferPlan {
  std::vector<Transfer> transfers;  // by stage
  LocalCopy local;                  // this rank's own part; made while messages are under way
};

struct Place {
  int rank = 0;
  int size = 1;
};

// n - 1 messages of part_bytes each way; in step s everybody sends to the s-th rank after it, so
// no rank is flooded.
TransferPlan plan_all_gather(Place place, std::byte* whole, std::byte* mine,
                             std::int64_t part_bytes);
// The same pattern; part r of `sent` goes to part `rank` of r's `received`.
TransferPlan plan_exchange(Place place, std::byte* received, std::byte* sent,
                           std::int64_t part_bytes, bool own_part_too);
// A binomial tree: log2(n) hops. Segments follow each other down the tree, so large tensors take
// little more than one hop.
TransferPlan plan_broadcast(Place place, int root, std::byte* memory, std::int64_t bytes,
                            std::int64_t segment_bytes);
// log2(n) rounds of empty messages.
TransferPlan plan_barrier(Place place);
TransferPlan plan_to_peer(Direction direction, int peer, std::byte* memory, std::int64_t bytes);

// Cuts messages into pieces of at most `max_bytes`.
void split_messages(TransferPlan& plan, std::int64_t max_bytes);

}  // namespace capstan::comm
