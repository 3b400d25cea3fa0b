#include "capstan/tensor_parallel/take.h"

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/heads.h"
#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

TEST(Take, GivesEachRankItsPartsSideBySide) {
  const at::Tensor whole = at::arange(32).view({2, 16});
  const HeadCut cut = cut_heads({4, 2, 2}, {1, 2});
  const at::Tensor mine = take(whole, cut_fused_qkv({2, 16}, 1, cut));
  EXPECT_TRUE(mine.is_contiguous());
  EXPECT_TRUE(at::equal(mine[0], at::tensor({4, 5, 6, 7, 10, 11, 14, 15})));
  EXPECT_TRUE(at::equal(mine[1], mine[0] + 16));
}

TEST(Take, TogetherGivesTheWhole) {
  const at::Tensor whole = test::whole_tensor({7, 3}, 1);
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(take(whole, cut_evenly({7, 3}, 0, {rank, ranks})));
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole));
  }
}

TEST(Take, DoesNotKeepTheWholeAlive) {
  const at::Tensor whole = at::zeros({8, 4});
  for (const int ranks : {1, 2}) {
    const at::Tensor mine = take(whole, cut_evenly({8, 4}, 0, {0, ranks}));
    EXPECT_FALSE(mine.storage().is_alias_of(whole.storage()));
    EXPECT_EQ(mine.storage().nbytes(), static_cast<std::size_t>(mine.numel()) * 4);
  }
}

TEST(Take, RefusesAnotherShape) {
  EXPECT_THROW(take(at::zeros({8, 4}), cut_evenly({8, 5}, 0, {0, 2})), InternalError);
}

}  // namespace
}  // namespace capstan::tensor_parallel
