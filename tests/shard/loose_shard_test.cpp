#include "capstan/shard/loose_shard.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "capstan/comm/loopback/loopback.h"
#include "tests/support/run_ranks.h"

namespace capstan::shard {
namespace {

const std::vector<std::int64_t> kLooseSizes = {5, 3};  // no multiple of the ranks

at::Tensor first_values() { return at::arange(15, at::kFloat).view(kLooseSizes); }

using LooseAct = std::function<void(LooseShard&, at::Tensor& param, int rank)>;

// Rank 0 has the values, the others something else.
void on_loose_ranks(int ranks, const LooseAct& act) {
  const auto hub = comm::make_loopback_hub(ranks);
  run_ranks(ranks, [&](comm::Group& all) {
    const auto group = std::make_shared<comm::Group>(comm::make_loopback(hub, all.rank()));
    at::Tensor param = all.rank() == 0 ? first_values() : at::full(kLooseSizes, -1.0);
    LooseShard shard(param, "w", {group, c10::kCPU});
    try {
      act(shard, param, all.rank());
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
}

TEST(LooseShard, KeepsAnEqualPartAndGivesTheFirstRanksValuesBack) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_loose_ranks(ranks, [&](LooseShard& shard, at::Tensor& param, int) {
      EXPECT_EQ(param.numel(), 0);
      EXPECT_EQ(shard.part().numel(), (15 + ranks - 1) / ranks);
      EXPECT_FALSE(shard.whole());
      shard.pin();
      EXPECT_TRUE(param.equal(first_values()));
      shard.unpin();
      EXPECT_EQ(param.numel(), 0);
    });
  }
}

TEST(LooseShard, IsWholeUntilTheLastUnpin) {
  on_loose_ranks(2, [](LooseShard& shard, at::Tensor& param, int) {
    shard.pin();
    shard.pin();
    shard.unpin();
    EXPECT_TRUE(shard.whole());
    EXPECT_EQ(param.numel(), 15);
    shard.unpin();
    EXPECT_FALSE(shard.whole());
  });
}

TEST(LooseShard, TakesWhatOneRankPutIntoIt) {
  on_loose_ranks(3, [](LooseShard& shard, at::Tensor& param, int rank) {
    shard.pin();
    const torch::NoGradGuard no_grad;
    param.fill_(rank);
    shard.take_from(2);
    EXPECT_EQ(shard.changes(), 1);
    shard.unpin();
    shard.pin();
    EXPECT_TRUE(param.eq(2).all().item<bool>());
    shard.unpin();
  });
}

TEST(LooseShard, ChangesItsDtypeInPiecesAndWhole) {
  on_loose_ranks(2, [](LooseShard& shard, at::Tensor& param, int) {
    shard.cast(at::kBFloat16);
    EXPECT_EQ(shard.part().scalar_type(), at::kBFloat16);
    EXPECT_EQ(param.scalar_type(), at::kBFloat16);
    shard.pin();
    shard.cast(at::kFloat);
    EXPECT_TRUE(param.equal(first_values()));  // small whole numbers are exact in bf16
    shard.unpin();
  });
}

}  // namespace
}  // namespace capstan::shard
