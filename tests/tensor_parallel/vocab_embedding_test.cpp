#include "capstan/tensor_parallel/vocab_embedding.h"

#include "capstan/base/error.h"
#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

using test::leaf;
using test::part_of;
using test::whole_tensor;

constexpr std::int64_t kUsedTokens = 19;
constexpr std::int64_t kTableRows = 22;  // 3 of them padding; 3 and 4 do not divide it
constexpr std::int64_t kTableWidth = 6;

at::Tensor token_ids() { return at::arange(24).view({2, 12}).mul(7).remainder(kUsedTokens); }

TEST(VocabEmbedding, GivesTheRowsAndGradientsOfTheWholeTable) {
  const at::Tensor whole = leaf(whole_tensor({kTableRows, kTableWidth}, 1));
  const at::Tensor up = whole_tensor({2, 12, kTableWidth}, 2);
  const at::Tensor expected = at::embedding(whole, token_ids());
  expected.backward(up);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::optional<std::int64_t> dim : {std::optional<std::int64_t>(), {1}}) {
      run_ranks(ranks, [&](comm::Group& group) {
        const Region region{&group, dim};
        const auto lies = [&](const at::Tensor& x) {
          return dim ? x.chunk(ranks, *dim)[static_cast<std::size_t>(group.rank())] : x;
        };
        const VocabCut cut = cut_vocabulary(kUsedTokens, kTableRows, region.place());
        const WeightCut rows = cut_evenly({kTableRows, kTableWidth}, 0, region.place());
        const at::Tensor mine = leaf(part_of(whole.detach(), rows));
        const at::Tensor result = vocab_embedding(region, token_ids(), mine, cut);
        // Sums of one row and zeros: nothing is rounded.
        EXPECT_TRUE(at::equal(result, lies(expected)));
        result.backward(lies(up));
        test::expect_near(mine.grad(), part_of(whole.grad(), rows), "weight");
      });
    }
  }
}

TEST(VocabEmbedding, RefusesATokenWithoutARow) {
  run_ranks(2, [&](comm::Group& group) {
    const Region region{&group, {}};
    const VocabCut cut = cut_vocabulary(kUsedTokens, kTableRows, region.place());
    const at::Tensor mine = at::zeros({cut.rows.size(), kTableWidth});
    for (const std::int64_t id : {std::int64_t{-1}, kTableRows}) {
      EXPECT_THROW(vocab_embedding(region, at::full({2}, id), mine, cut), ConfigError);
    }
  });
}

}  // namespace
}  // namespace capstan::tensor_parallel
