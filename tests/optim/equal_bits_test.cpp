#include <cstring>
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

// Long enough that stores go past the caches, short, and not a multiple of the vector's width.
TEST_P(EqualBits, IntoFreshColumnsWhileTheOldOnesStay) {
  WorkerPool pool(1);
  const CpuRun run = {.pool = pool, .simd = GetParam()};
  const Stepper through_fresh = [&run](const Case& c, const StepScalars& scalars, Span span) {
    const std::vector<float> zeros(static_cast<std::size_t>(c.elems));
    TestColumn master(c.dtypes.master, zeros, c.offset);
    TestColumn first(c.dtypes.state, zeros, c.offset);
    TestColumn second(c.dtypes.state, zeros, c.offset);
    span.fresh_master = master.column();
    span.fresh_states[0] = first.column();
    span.fresh_states[1] = second.column();
    const auto bytes = [&](DType dtype) {
      return static_cast<std::size_t>(c.elems * size_bytes(dtype));
    };
    const std::string before(static_cast<const char*>(span.master.data), bytes(c.dtypes.master));
    update(c.variant.kind, c.variant.hyper, scalars, span, run);
    EXPECT_EQ(std::memcmp(before.data(), span.master.data, before.size()), 0) << text_of(c);
    std::memcpy(span.master.data, master.column().data, bytes(c.dtypes.master));
    const std::size_t states = state_names(c.variant.kind, c.variant.hyper).size();
    const Column fresh[] = {first.column(), second.column()};
    for (std::size_t s = 0; s < states; ++s) {
      std::memcpy(span.states[s].data, fresh[s].data, bytes(c.dtypes.state));
    }
    return 1.0;
  };
  for (const Variant& variant : variants()) {
    if (variant.kind == Kind::lamb) continue;
    for (const std::int64_t elems : {37, 300'001}) {
      for (const DType state : {DType::fp32, DType::bf16}) {
        const Case c{variant, {DType::fp32, DType::bf16, state, DType::bf16}, elems, 0, false};
        EXPECT_EQ(optim::run_case(c, through_fresh), run_case(c, GetParam(), 1)) << text_of(c);
      }
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
