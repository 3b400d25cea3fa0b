#include "capstan/comm/mpi/transfer_plan.h"

#include <algorithm>
#include <bit>

namespace capstan::comm {
namespace {

// Where `place` stands in the binomial tree under `root`: its parent and children, by distance.
struct TreePlace {
  int parent = -1;
  std::vector<int> children;  // the one with the largest subtree first
};

TreePlace find_tree_place(Place place, int root) {
  const auto relative = static_cast<unsigned>((place.rank - root + place.size) % place.size);
  const auto absolute = [&](unsigned other) {
    return static_cast<int>((other + root) % static_cast<unsigned>(place.size));
  };
  TreePlace tree;
  if (relative != 0) {
    tree.parent = absolute(relative - std::bit_floor(relative));
  }
  // Children add one bit above our highest.
  for (unsigned bit = relative == 0 ? 1 : std::bit_floor(relative) << 1;
       relative + bit < static_cast<unsigned>(place.size); bit <<= 1) {
    tree.children.push_back(absolute(relative + bit));
  }
  return tree;
}

}  // namespace

TransferPlan plan_all_gather(Place place, std::byte* whole, std::byte* mine,
                             std::int64_t part_bytes) {
  TransferPlan plan;
  plan.transfers.reserve(2 * static_cast<std::size_t>(place.size - 1));
  for (int step = 1; step < place.size; ++step) {
    const int from = (place.rank - step + place.size) % place.size;
    const int to = (place.rank + step) % place.size;
    plan.transfers.push_back({Direction::recv, from, 0, whole + from * part_bytes, part_bytes});
    plan.transfers.push_back({Direction::send, to, 0, mine, part_bytes});
  }
  plan.local = {whole + place.rank * part_bytes, mine, part_bytes};
  return plan;
}

TransferPlan plan_exchange(Place place, std::byte* received, std::byte* sent,
                           std::int64_t part_bytes, bool own_part_too) {
  TransferPlan plan;
  plan.transfers.reserve(2 * static_cast<std::size_t>(place.size - 1));
  for (int step = 1; step < place.size; ++step) {
    const int from = (place.rank - step + place.size) % place.size;
    const int to = (place.rank + step) % place.size;
    plan.transfers.push_back({Direction::recv, from, 0, received + from * part_bytes, part_bytes});
    plan.transfers.push_back({Direction::send, to, 0, sent + to * part_bytes, part_bytes});
  }
  if (own_part_too) {
    plan.local = {received + place.rank * part_bytes, sent + place.rank * part_bytes, part_bytes};
  }
  return plan;
}

TransferPlan plan_broadcast(Place place, int root, std::byte* memory, std::int64_t bytes,
                            std::int64_t segment_bytes) {
  TransferPlan plan;
  const TreePlace tree = find_tree_place(place, root);
  // An empty broadcast still needs its one message, so that nobody runs ahead of a mismatch.
  const std::int64_t segments =
      std::max<std::int64_t>(1, (bytes + segment_bytes - 1) / segment_bytes);
  const int hop = tree.parent < 0 ? 0 : 1;  // a segment is passed on one stage after it came
  for (std::int64_t stage = 0; stage < segments + hop; ++stage) {
    const auto add = [&](Direction direction, int peer, std::int64_t segment) {
      const std::int64_t begin = segment * segment_bytes;
      // A rank that wrongly takes itself for the root waits for nobody else than those it sends to:
      // at least one of them does not receive from it.
      plan.transfers.push_back({.direction = direction,
                                .peer = peer,
                                .stage = static_cast<int>(stage),
                                .memory = memory + begin,
                                .bytes = std::min(segment_bytes, bytes - begin),
                                .until_received = direction == Direction::send});
    };
    if (tree.parent >= 0 && stage < segments) {
      add(Direction::recv, tree.parent, stage);
    }
    if (stage >= hop) {
      for (const int child : tree.children) add(Direction::send, child, stage - hop);
    }
  }
  return plan;
}

TransferPlan plan_barrier(Place place) {
  TransferPlan plan;
  int stage = 0;
  for (int distance = 1; distance < place.size; distance *= 2, ++stage) {
    const int from = (place.rank - distance + place.size) % place.size;
    const int to = (place.rank + distance) % place.size;
    plan.transfers.push_back({Direction::recv, from, stage, nullptr, 0});
    plan.transfers.push_back({Direction::send, to, stage, nullptr, 0});
  }
  return plan;
}

TransferPlan plan_to_peer(Direction direction, int peer, std::byte* memory, std::int64_t bytes) {
  return {.transfers = {{direction, peer, 0, memory, bytes}}};
}

void split_messages(TransferPlan& plan, std::int64_t max_bytes) {
  const auto fits = [&](const Transfer& transfer) { return transfer.bytes <= max_bytes; };
  if (std::ranges::all_of(plan.transfers, fits)) {
    return;
  }
  std::vector<Transfer> pieces;
  for (const Transfer& transfer : plan.transfers) {
    std::int64_t begin = 0;
    do {
      const std::int64_t bytes = std::min(max_bytes, transfer.bytes - begin);
      Transfer piece = transfer;
      piece.memory += begin;
      piece.bytes = bytes;
      pieces.push_back(piece);
      begin += bytes;
    } while (begin < transfer.bytes);
  }
  plan.transfers = std::move(pieces);
}

}  // namespace capstan::comm
