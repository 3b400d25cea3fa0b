#include "capstan/sequence_parallel/mean.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/sequence_parallel/test_group.h"
#include "tests/support/run_ranks.h"

namespace capstan::sequence_parallel {
namespace {

TEST(Mean, SharesAndTheirGradientsAddUpWhateverEachRankCounts) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](comm::Group& group) {
      const int mine = group.rank() + 1;  // positions
      at::Tensor values = at::arange(mine, at::kDouble).add_(10 * group.rank()).requires_grad_();
      const at::Tensor share = share_of_mean(values.sum(), at::scalar_tensor(mine), shared(group));
      share.backward();
      const int all = ranks * (ranks + 1) / 2;
      EXPECT_TRUE(at::allclose(values.grad(), at::full_like(values, 1.0 / all)));
      at::Tensor sum = share.detach().reshape({1}).clone();
      group.all_reduce(sum).wait();
      double expected = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int i = 0; i <= rank; ++i) expected += 10 * rank + i;
      }
      EXPECT_NEAR(sum.item<double>(), expected / all, 1e-12);
    });
  }
}

}  // namespace
}  // namespace capstan::sequence_parallel
