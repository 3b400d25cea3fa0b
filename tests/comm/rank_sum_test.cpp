#include "capstan/comm/rank_sum.h"

#include <array>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/comm/op.h"
#include "capstan/comm/rank_sum_loops.h"
#include "tests/support/comm_cases.h"

namespace capstan::comm {
namespace {

// Around the vector width, the block of the local sum, and odd starts.
constexpr std::int64_t kLengths[] = {0, 1, 7, 8, 9, 31, 2047, 2048, 2049, 6001};

TEST(RankSum, AddsFromLeftToRightAndRoundsOnce) {
  for (const at::ScalarType dtype : kCommDtypes) {
    for (const std::int64_t n : kLengths) {
      for (const int ranks : {1, 2, 3, 5}) {
        std::vector<at::Tensor> pieces;
        for (int rank = 0; rank < ranks; ++rank) {
          // One element in, so that pieces are not aligned.
          pieces.push_back(numbers_of_rank(n + 1, rank, dtype).narrow(0, 1, n));
        }
        at::Tensor out = at::empty({n}, dtype);
        sum_in_rank_order(out, pieces, /*accumulate=*/false);
        EXPECT_TRUE(out.equal(sum_over_ranks(ranks, n + 1, dtype, dtype).narrow(0, 1, n)))
            << dtype_name(dtype) << " n=" << n << " ranks=" << ranks;
      }
    }
  }
}

TEST(RankSum, OrderMattersAndIsRankOrder) {
  // (1 + 1e8) - 1e8 is 0 in fp32; any other order of additions gives 1.
  const std::vector<at::Tensor> pieces = {at::full({1}, 1.0f), at::full({1}, 1e8f),
                                          at::full({1}, -1e8f)};
  at::Tensor out = at::empty({1});
  sum_in_rank_order(out, pieces, false);
  EXPECT_EQ(out.item<float>(), 0.0f);
}

TEST(RankSum, SixteenBitPiecesKeepWhatAnFp32SumHolds) {
  const std::vector<at::Tensor> pieces(256, at::full({1}, 1.0).to(at::kBFloat16).add(0));
  at::Tensor wide = at::full({1}, 0.5f);
  sum_in_rank_order(wide, pieces, /*accumulate=*/true);
  EXPECT_EQ(wide.item<float>(), 256.5f);  // bf16 alone has no 256.5
}

TEST(RankSum, MayWriteIntoOneOfItsPieces) {
  for (const at::ScalarType dtype : kCommDtypes) {
    for (int target = 0; target < 3; ++target) {
      std::vector<at::Tensor> pieces;
      for (int rank = 0; rank < 3; ++rank) pieces.push_back(numbers_of_rank(5000, rank, dtype));
      at::Tensor out = pieces[target];
      sum_in_rank_order(out, pieces, false);
      EXPECT_TRUE(out.equal(sum_over_ranks(3, 5000, dtype, dtype)));
    }
  }
}

// Infinities, NaN, the smallest and the largest, ties of the rounding.
TEST(RankSum, GivesTheSameBitsOnEveryInstructionSet) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) {
    GTEST_SKIP() << "this processor has no AVX2 and F16C";
  }
  std::vector<float> values;
  for (int i = 0; i < 0x10000; ++i) {
    values.push_back(static_cast<float>(i) * 1.0003f - 30'000.0f);
    values.push_back(std::ldexp(1.0f + static_cast<float>(i % 512) / 512.0f, i % 64 - 32));
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (const float special : {0.0f, -0.0f, inf, -inf, 1e-42f, 65'504.0f, 65'520.0f, 1e38f}) {
    values.push_back(special);
  }
  const auto n = static_cast<std::int64_t>(values.size());
  const at::Tensor source = at::from_blob(values.data(), {n});
  for (const at::ScalarType piece : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor a = source.to(piece).contiguous();
    const at::Tensor b = source.flip(0).to(piece).contiguous();
    const std::array<const void*, 2> pieces = {a.const_data_ptr(), b.const_data_ptr()};
    for (const at::ScalarType out : {at::kFloat, at::kHalf, at::kBFloat16}) {
      at::Tensor portable = at::ones({n}, out);
      at::Tensor vector = at::ones({n}, out);
      find_sum_loop_portable(out, piece)(portable.mutable_data_ptr(), pieces, n, true);
      find_sum_loop_avx2(out, piece)(vector.mutable_data_ptr(), pieces, n, true);
      EXPECT_TRUE(portable.equal(vector) || at::equal(portable.nan_to_num(7), vector.nan_to_num(7)))
          << dtype_name(piece) << " -> " << dtype_name(out);
      // And the same as libtorch rounds.
      const at::Tensor sum = a.to(at::kFloat).add(b.to(at::kFloat)).add(1.0f).to(out);
      EXPECT_TRUE(at::equal(portable.nan_to_num(7), sum.nan_to_num(7)));
    }
  }
}

TEST(RankSum, RefusesWhatItCannotAddExactly) {
  EXPECT_TRUE(can_sum(at::kFloat, at::kBFloat16));
  EXPECT_FALSE(can_sum(at::kFloat, at::kDouble));
  EXPECT_FALSE(can_sum(at::kDouble, at::kFloat));
  EXPECT_FALSE(can_sum(at::kLong, at::kInt));
  EXPECT_FALSE(can_sum(at::kBool, at::kBool));
}

}  // namespace
}  // namespace capstan::comm
