#include "capstan/tensor_parallel/heads.h"

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {
namespace {

using layout::ElemRange;
using testing::ElementsAre;
using testing::HasSubstr;

void for_every_attention(const std::function<void(const Heads&, int ranks)>& use) {
  for (std::int64_t query = 1; query <= 16; ++query) {
    for (std::int64_t key = 1; key <= query; ++key) {
      if (query % key != 0) continue;
      for (int ranks = 1; ranks <= query; ++ranks) use({query, key, 5}, ranks);
    }
  }
}

TEST(Heads, EveryQueryHeadIsOnOneRankInOrder) {
  for_every_attention([](const Heads& heads, int ranks) {
    std::int64_t end = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const HeadCut cut = cut_heads(heads, {rank, ranks});
      EXPECT_EQ(cut.query.begin, end);
      EXPECT_GT(cut.query.size(), 0);
      end = cut.query.end;
    }
    EXPECT_EQ(end, heads.query);
  });
}

TEST(Heads, ARankHasTheKeyHeadsThatItsQueryHeadsLookAtAndNoOthers) {
  for_every_attention([](const Heads& heads, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const HeadCut cut = cut_heads(heads, {rank, ranks});
      const std::vector<std::int64_t> counts = cut.queries_per_key();
      ASSERT_EQ(std::ssize(counts), cut.key.size());
      std::int64_t query = cut.query.begin;
      for (std::int64_t key = 0; key < cut.key.size(); ++key) {
        EXPECT_GT(counts[key], 0);
        for (std::int64_t i = 0; i < counts[key]; ++i, ++query) {
          EXPECT_EQ(query / (heads.query / heads.key), cut.key.begin + key);
        }
      }
      EXPECT_EQ(query, cut.query.end);
    }
  });
}

TEST(Heads, KeyHeadsAreSharedExactlyWhereRanksOutnumberThem) {
  for_every_attention([](const Heads& heads, int ranks) {
    std::vector<int> holders(static_cast<std::size_t>(heads.key));
    bool said = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const HeadCut cut = cut_heads(heads, {rank, ranks});
      for (std::int64_t key = cut.key.begin; key < cut.key.end; ++key) ++holders[key];
      said = cut.keys_shared;
    }
    EXPECT_GT(*std::ranges::min_element(holders), 0);
    EXPECT_EQ(*std::ranges::max_element(holders) > 1, ranks > heads.key);
    EXPECT_EQ(said, ranks > heads.key);
  });
}

TEST(Heads, AreCutOutOfFusedWeights) {
  const HeadCut cut = cut_heads({8, 4, 2}, {1, 2});
  EXPECT_EQ(cut.query, (ElemRange{4, 8}));
  EXPECT_EQ(cut.key, (ElemRange{2, 4}));
  EXPECT_THAT(cut.queries_per_key(), ElementsAre(2, 2));
  EXPECT_THAT(cut_fused_qkv({32, 16}, 0, cut).ranges,
              ElementsAre(ElemRange{8, 16}, ElemRange{20, 24}, ElemRange{28, 32}));
  EXPECT_THAT(cut_queries({16, 16}, 1, cut).ranges, ElementsAre(ElemRange{8, 16}));
  EXPECT_THAT(cut_keys({8, 16}, 0, cut).ranges, ElementsAre(ElemRange{4, 8}));
}

TEST(Heads, OneKeyHeadGoesToEveryRank) {
  for (int rank = 0; rank < 4; ++rank) {
    const HeadCut cut = cut_heads({8, 1, 2}, {rank, 4});
    EXPECT_EQ(cut.key, (ElemRange{0, 1}));
    EXPECT_EQ(cut.query, (ElemRange{2 * rank, 2 * rank + 2}));
    EXPECT_TRUE(cut.keys_shared);
  }
}

TEST(Heads, SaysWhatCannotBe) {
  const auto refusal = [](const Heads& heads, int ranks) {
    try {
      cut_heads(heads, {0, ranks});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal({4, 4, 8}, 8),
              AllOf(HasSubstr("4 attention heads cannot be shared by 8 tensor ranks"),
                    HasSubstr("at most 4")));
  EXPECT_THAT(refusal({4, 3, 8}, 1), HasSubstr("3 key heads cannot serve 4 query heads"));
}

}  // namespace
}  // namespace capstan::tensor_parallel
