#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "tests/optim/columns.h"

namespace capstan::optim {
namespace {

struct Variant {
  std::string label;
  Kind kind;
  HyperParams hyper;
};

std::vector<Variant> variants() {
  return {{"adam", Kind::adam, {.weight_decay = 0.01}},
          {"adam_plain", Kind::adam, {.bias_correction = false}},
          {"adamw", Kind::adamw, {.weight_decay = 0.1}},
          {"sgd", Kind::sgd, {.weight_decay = 0.01}},
          {"sgd_momentum", Kind::sgd, {.momentum = 0.9, .dampening = 0.1}},
          {"sgd_nesterov", Kind::sgd, {.weight_decay = 0.01, .momentum = 0.9, .nesterov = true}},
          {"lion", Kind::lion, {.beta2 = 0.99, .weight_decay = 0.1}},
          {"adagrad", Kind::adagrad, {.eps = 1e-10, .weight_decay = 0.01}},
          {"lamb", Kind::lamb, {.weight_decay = 0.01}},
          {"lamb_inside", Kind::lamb, {.eps_inside_sqrt = true}}};
}

struct Dtypes {
  DType master, grad, state, param;
};

constexpr DType kAllDtypes[] = {DType::fp32, DType::bf16, DType::fp16};

// Everything a step of one kind writes, as bits.
using Outcome = std::vector<std::vector<std::uint32_t>>;

struct Case {
  Variant variant;
  Dtypes dtypes;
  std::int64_t elems;
  int offset;
  bool awkward;
};

// Two steps, the second of which finds the states of the first.
Outcome run_case(const Case& c, Simd simd, int threads) {
  const auto values = [&](unsigned seed) {
    return c.awkward ? awkward_values(c.elems, seed) : normal_values(c.elems, seed);
  };
  TestColumn master(c.dtypes.master, values(1), c.offset);
  TestColumn grad(c.dtypes.grad, values(2), c.offset);
  TestColumn first(c.dtypes.state, values(3), c.offset);
  TestColumn second(c.dtypes.state, magnitudes(values(4)), c.offset);
  TestColumn param(c.dtypes.param, values(5), c.offset);
  const bool sum_only = c.variant.kind == Kind::adagrad;
  const Span span = {.master = master.column(),
                     .grad = grad.view(),
                     .states = {sum_only ? second.column() : first.column(), second.column()},
                     .param = param.column(),
                     .elems = c.elems};
  WorkerPool pool(threads);
  const CpuRun run = {.pool = pool, .simd = simd};
  Outcome outcome;
  for (const std::int64_t step : {1, 7}) {
    const StepScalars scalars = {.lr = 1e-2, .step = step, .grad_factor = 0.125};
    if (c.variant.kind == Kind::lamb) {
      const LambSums sums = lamb_prepare(c.variant.hyper, scalars, span, run);
      const double ratio = lamb_trust_ratio(c.variant.hyper, sums);
      outcome.push_back({std::bit_cast<std::uint32_t>(static_cast<float>(
          std::isnan(ratio) ? std::numeric_limits<double>::quiet_NaN() : ratio))});
      lamb_apply(c.variant.hyper, scalars, ratio, span, run);
    } else {
      update(c.variant.kind, c.variant.hyper, scalars, span, run);
    }
  }
  for (TestColumn* column : {&master, &first, &second, &param}) {
    EXPECT_TRUE(column->neighbours_untouched()) << c.variant.label << " elems=" << c.elems;
    outcome.push_back(column->bits());
  }
  return outcome;
}

class EqualBits : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this machine has no " << name(GetParam());
  }

  void expect_equal(const Case& c) {
    EXPECT_EQ(run_case(c, GetParam(), 1), run_case(c, Simd::scalar, 1))
        << c.variant.label << " elems=" << c.elems << " offset=" << c.offset
        << " grad=" << name(c.dtypes.grad) << " state=" << name(c.dtypes.state)
        << " master=" << name(c.dtypes.master) << " param=" << name(c.dtypes.param);
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
  for (const Variant& variant : variants()) {
    for (int offset = 0; offset < 17; ++offset) {
      expect_equal(
          {variant, {DType::fp32, DType::fp16, DType::fp32, DType::fp16}, 37, offset, false});
    }
  }
}

TEST_P(EqualBits, WithZerosInfinitiesNansAndDenormals) {
  for (const Variant& variant : variants()) {
    for (const DType grad : kAllDtypes) {
      expect_equal({variant, {DType::fp32, grad, DType::fp32, DType::bf16}, 1000, 0, true});
    }
  }
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
