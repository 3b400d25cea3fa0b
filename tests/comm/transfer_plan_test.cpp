#include "capstan/comm/mpi/transfer_plan.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::comm {
namespace {

// Carries out the plans of all ranks as MPI would: between each pair, messages in order; a stage
// after the one before. False when it cannot go on.
bool carry_out(std::vector<TransferPlan>& plans) {
  const auto size = static_cast<int>(plans.size());
  std::vector<std::size_t> done(size, 0);  // transfers of complete stages
  std::map<std::pair<int, int>, std::deque<Transfer>> sent;
  std::vector<std::size_t> posted(size, 0);
  for (int rank = 0; rank < size; ++rank) {
    const LocalCopy& local = plans[rank].local;
    if (local.bytes > 0) std::memmove(local.to, local.from, local.bytes);
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (int rank = 0; rank < size; ++rank) {
      const auto& transfers = plans[rank].transfers;
      if (done[rank] == transfers.size()) continue;
      std::size_t stage_end = done[rank];
      while (stage_end < transfers.size() &&
             transfers[stage_end].stage == transfers[done[rank]].stage) {
        ++stage_end;
      }
      for (; posted[rank] < stage_end; ++posted[rank]) {
        const Transfer& transfer = transfers[posted[rank]];
        if (transfer.direction == Direction::send) sent[{rank, transfer.peer}].push_back(transfer);
      }
      const bool ready = std::all_of(
          transfers.begin() + done[rank], transfers.begin() + stage_end, [&](const Transfer& t) {
            return t.direction == Direction::send || !sent[{t.peer, rank}].empty();
          });
      if (!ready) continue;
      for (std::size_t i = done[rank]; i < stage_end; ++i) {
        const Transfer& to = transfers[i];
        if (to.direction == Direction::send) continue;
        const Transfer from = sent[{to.peer, rank}].front();
        sent[{to.peer, rank}].pop_front();
        if (from.bytes != to.bytes) return false;
        if (to.bytes > 0) std::memcpy(to.memory, from.memory, to.bytes);
      }
      done[rank] = stage_end;
      moved = true;
    }
  }
  const bool nothing_lost =
      std::ranges::all_of(sent, [](const auto& pair) { return pair.second.empty(); });
  for (int rank = 0; rank < size; ++rank) {
    if (done[rank] != plans[rank].transfers.size()) return false;
  }
  return nothing_lost;
}

using Bytes = std::vector<std::byte>;

Bytes pattern(int rank, std::int64_t n) {
  Bytes bytes(n);
  for (std::int64_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(rank * 37 + i * 5 + 1);
  return bytes;
}

TEST(TransferPlan, AllGatherBringsEveryPartToEveryRank) {
  for (const int size : {1, 2, 3, 4, 7, 16}) {
    const std::int64_t part = 11;
    std::vector<Bytes> mine;
    std::vector<Bytes> whole(size, Bytes(part * size));
    std::vector<TransferPlan> plans;
    for (int rank = 0; rank < size; ++rank) mine.push_back(pattern(rank, part));
    for (int rank = 0; rank < size; ++rank) {
      plans.push_back(plan_all_gather({rank, size}, whole[rank].data(), mine[rank].data(), part));
      split_messages(plans.back(), 4);
    }
    ASSERT_TRUE(carry_out(plans)) << size;
    for (int rank = 0; rank < size; ++rank) {
      for (int from = 0; from < size; ++from) {
        EXPECT_TRUE(
            std::equal(mine[from].begin(), mine[from].end(), whole[rank].begin() + from * part));
      }
    }
  }
}

TEST(TransferPlan, ExchangeTransposesParts) {
  for (const int size : {1, 2, 3, 5, 8}) {
    const std::int64_t part = 6;
    std::vector<Bytes> sent;
    std::vector<Bytes> received(size, Bytes(part * size));
    std::vector<TransferPlan> plans;
    for (int rank = 0; rank < size; ++rank) sent.push_back(pattern(rank, part * size));
    for (int rank = 0; rank < size; ++rank) {
      plans.push_back(
          plan_exchange({rank, size}, received[rank].data(), sent[rank].data(), part, true));
    }
    ASSERT_TRUE(carry_out(plans)) << size;
    for (int rank = 0; rank < size; ++rank) {
      for (int from = 0; from < size; ++from) {
        EXPECT_TRUE(std::equal(received[rank].begin() + from * part,
                               received[rank].begin() + (from + 1) * part,
                               sent[from].begin() + rank * part));
      }
    }
  }
}

TEST(TransferPlan, BroadcastReachesAllFromEveryRootInSegments) {
  for (const int size : {1, 2, 3, 4, 5, 8, 13}) {
    for (int root = 0; root < size; ++root) {
      for (const std::int64_t bytes : {0, 1, 10, 11}) {
        std::vector<Bytes> memory;
        std::vector<TransferPlan> plans;
        for (int rank = 0; rank < size; ++rank) memory.push_back(pattern(rank, bytes));
        for (int rank = 0; rank < size; ++rank) {
          plans.push_back(plan_broadcast({rank, size}, root, memory[rank].data(), bytes, 4));
        }
        ASSERT_TRUE(carry_out(plans)) << size << " from " << root;
        for (int rank = 0; rank < size; ++rank) EXPECT_EQ(memory[rank], pattern(root, bytes));
      }
    }
  }
}

TEST(TransferPlan, BarrierTakesTheLogarithmOfTheSizeInRounds) {
  for (const auto& [size, rounds] :
       std::map<int, int>{{1, 0}, {2, 1}, {3, 2}, {4, 2}, {1000, 10}}) {
    std::vector<TransferPlan> plans;
    for (int rank = 0; rank < size; ++rank) plans.push_back(plan_barrier({rank, size}));
    EXPECT_EQ(static_cast<int>(plans[0].transfers.size()), 2 * rounds);
    EXPECT_TRUE(carry_out(plans));
  }
}

TEST(TransferPlan, SplittingKeepsEveryByteInOrder) {
  Bytes memory(100);
  TransferPlan plan = plan_to_peer(Direction::send, 1, memory.data(), 100);
  split_messages(plan, 30);
  ASSERT_EQ(plan.transfers.size(), 4u);
  std::int64_t next = 0;
  for (const Transfer& transfer : plan.transfers) {
    EXPECT_EQ(transfer.memory, memory.data() + next);
    next += transfer.bytes;
  }
  EXPECT_EQ(next, 100);
  EXPECT_EQ(plan.transfers.back().bytes, 10);
}

}  // namespace
}  // namespace capstan::comm
