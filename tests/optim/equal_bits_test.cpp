#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "tests/optim/kernel_cases.h"

namespace capstan::optim {
namespace {

Outcome run_case(const Case& c, Simd simd, int threads) {
  WorkerPool pool(threads);
  const CpuRun run = {.pool = pool, .simd = simd};
  return run_case(c, cpu_stepper(run));
}

class EqualBits : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this machine has no " << name(GetParam());
  }

  void expect_equal(const Case& c) {
    EXPECT_EQ(run_case(c, GetParam(), 1), run_case(c, Simd::scalar, 1)) << text_of(c);
  }
};

TEST_P(EqualBits, AtEveryLengthAroundTheVectorWidth) {
  for (const Variant& variant : variants()) {
    for (std::int64_t elems = 0; elems <= 70; ++elems) {
      expect_equal(
          {variant, {DType::fp32, DType::bf16, DType::fp32, DType::bf16}, elems, 0, false});
    }
  }
}

TEST_P(EqualBits, AtEveryMisalignment) {
  for (const Case& c : misaligned_cases(17)) expect_equal(c);
}

TEST_P(EqualBits, WithZerosInfinitiesNansAndDenormals) {
  for (const Case& c : awkward_cases()) expect_equal(c);
}

TEST_P(EqualBits, ForEveryCombinationOfDtypes) {
  for (const Variant& variant : variants()) {
    for (const DType master : kAllDtypes) {
      for (const DType grad : kAllDtypes) {
        for (const DType state : kAllDtypes) {
          for (const DType param : kAllDtypes) {
            expect_equal({variant, {master, grad, state, param}, 83, 1, false});
          }
        }
      }
    }
  }
}

TEST_P(EqualBits, ForEveryThreadCount) {
  for (const Variant& variant : variants()) {
    const Case c = {
        variant, {DType::fp32, DType::bf16, DType::fp32, DType::bf16}, 170'003, 0, false};
    const Outcome expected = run_case(c, Simd::scalar, 1);
    for (const int threads : {1, 2, 5}) {
      EXPECT_EQ(run_case(c, GetParam(), threads), expected)
          << variant.label << " threads=" << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, EqualBits, testing::Values(Simd::scalar, Simd::avx2, Simd::avx512),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST(Update, LeavesAnAbsentParamCopyAlone) {
  TestColumn master(DType::fp32, {1.0f}, 0);
  TestColumn grad(DType::fp32, {0.5f}, 0);
  WorkerPool pool(1);
  update(Kind::sgd, {}, {.lr = 0.5}, {.master = master.column(), .grad = grad.view(), .elems = 1},
         {.pool = pool});
  EXPECT_EQ(master.values(), std::vector<float>{0.75f});
}

TEST(Update, GivesTheParamCopyTheRoundedMaster) {
  const std::vector<float> start = normal_values(100, 1);
  TestColumn master(DType::fp32, start, 0);
  TestColumn grad(DType::fp32, normal_values(100, 2), 0);
  TestColumn param(DType::bf16, start, 0);
  WorkerPool pool(1);
  update(Kind::sgd, {}, {.lr = 0.5},
         {.master = master.column(), .grad = grad.view(), .param = param.column(), .elems = 100},
         {.pool = pool});
  TestColumn expected(DType::bf16, master.values(), 0);
  EXPECT_EQ(param.bits(), expected.bits());
}

}  // namespace
}  // namespace capstan::optim
