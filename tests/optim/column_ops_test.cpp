#include "capstan/optim/column_ops.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/optim/cpu/kernel_table.h"
#include "tests/optim/columns.h"

namespace capstan::optim {
namespace {

class ColumnOps : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this machine has no " << name(GetParam());
  }
};

TEST_P(ColumnOps, SumOfSquaresHasTheSameBitsForAnyWidthAndThreadCount) {
  WorkerPool one(1);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t elems :
         {0, 1, 7, 8, 15, 16, 31, 32, 33, 100, 16383, 16384, 16385, 300'000}) {
      TestColumn column(dtype, normal_values(elems, 9, 3.0f), /*offset=*/1);
      const double expected =
          sum_squares(column.view(), elems, {.pool = one, .simd = Simd::scalar});
      double plain = 0.0;
      for (const float x : column.values()) plain += static_cast<double>(x) * x;
      // Each of the at most elems additions is off by half an ulp of the sum.
      EXPECT_NEAR(expected, plain, plain * 1.2e-16 * static_cast<double>(elems + 1));
      for (const int threads : {1, 2, 3, 7}) {
        WorkerPool pool(threads);
        const double sum = sum_squares(column.view(), elems, {.pool = pool, .simd = GetParam()});
        EXPECT_EQ(std::bit_cast<std::uint64_t>(sum), std::bit_cast<std::uint64_t>(expected))
            << name(dtype) << " elems=" << elems << " threads=" << threads;
      }
    }
  }
}

TEST_P(ColumnOps, SumOfSquaresSpansSeveralWavesOfBlocks) {
  const std::int64_t elems = 257 * kSumBlockElems + 5;  // a wave is 256 blocks
  const std::vector<float> ones(static_cast<std::size_t>(elems), 1.0f);
  WorkerPool pool(2);
  EXPECT_EQ(sum_squares({ones.data(), DType::fp32}, elems, {.pool = pool, .simd = GetParam()}),
            static_cast<double>(elems));
}

TEST_P(ColumnOps, SumOfSquaresIsFiniteExactlyWhenEveryElementIs) {
  WorkerPool pool(1);
  const CpuRun run = {.pool = pool, .simd = GetParam()};
  constexpr std::int64_t kElems = 75;
  const std::vector<float> largest(kElems, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(sum_squares({largest.data(), DType::fp32}, kElems, run)));
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t bad = 0; bad < kElems; ++bad) {
      for (const float value :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values = normal_values(kElems, 1);
        values[static_cast<std::size_t>(bad)] = value;
        TestColumn column(dtype, values, 0);
        EXPECT_FALSE(std::isfinite(sum_squares(column.view(), kElems, run))) << "at " << bad;
      }
    }
  }
}

// Every fp16 and bf16 value, and every fp32 value that lies on or beside a rounding boundary.
TEST_P(ColumnOps, ConvertsEveryHalfAndEveryRoundingBoundaryAsTheReference) {
  WorkerPool pool(1);
  const CpuRun run = {.pool = pool, .simd = GetParam()};
  const CpuRun reference = {.pool = pool, .simd = Simd::scalar};
  constexpr std::int64_t kHalves = 65536;
  std::vector<std::uint16_t> halves(kHalves);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    std::vector<float> wide(kHalves), expected(kHalves);
    convert({wide.data(), DType::fp32}, {halves.data(), dtype}, kHalves, run);
    convert({expected.data(), DType::fp32}, {halves.data(), dtype}, kHalves, reference);
    EXPECT_EQ(std::memcmp(wide.data(), expected.data(), kHalves * 4), 0) << name(dtype);

    std::vector<float> near;
    for (std::uint32_t upper = 0; upper < kHalves; ++upper) {
      for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu,
                                        0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        near.push_back(std::bit_cast<float>(upper << 16 | lower));
      }
    }
    const auto elems = static_cast<std::int64_t>(near.size());
    std::vector<std::uint16_t> narrow(near.size()), narrow_expected(near.size());
    convert({narrow.data(), dtype}, {near.data(), DType::fp32}, elems, run);
    convert({narrow_expected.data(), dtype}, {near.data(), DType::fp32}, elems, reference);
    EXPECT_EQ(narrow, narrow_expected) << name(dtype);
  }
}

TEST_P(ColumnOps, AccumulatesInFp32AndRoundsOnce) {
  WorkerPool pool(2);
  const CpuRun run = {.pool = pool, .simd = GetParam()};
  for (const DType to : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType from : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const std::int64_t elems : {0, 1, 15, 16, 17, 100'001}) {
        TestColumn sum(to, normal_values(elems, 1), 1);
        TestColumn more(from, normal_values(elems, 2), 3);
        std::vector<float> expected = sum.values();
        const std::vector<float> add = more.values();
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += add[i];
        accumulate(sum.column(), more.view(), elems, run);
        EXPECT_EQ(sum.bits(), TestColumn(to, expected, 0).bits()) << name(to) << name(from);
        EXPECT_TRUE(sum.neighbours_untouched());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, ColumnOps, testing::Values(Simd::scalar, Simd::avx2, Simd::avx512),
                         [](const auto& param) { return std::string(name(param.param)); });

}  // namespace
}  // namespace capstan::optim
