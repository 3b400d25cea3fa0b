// What each optimizer computes, against its equations in fp64, and the values around it.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "tests/optim/columns.h"

namespace capstan::optim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One optimizer over `elems` fp32 elements; step() uses a new random gradient each time.
class Bench {
 public:
  Bench(Kind kind, HyperParams hyper, std::int64_t elems)
      : kind_(kind),
        hyper_(hyper),
        master(normal_values(elems, 1)),
        states{std::vector<float>(master.size()), std::vector<float>(master.size())} {}

  void step(StepScalars scalars) {
    grad = normal_values(static_cast<std::int64_t>(master.size()),
                         10u + static_cast<unsigned>(scalars.step));
    if (kind_ == Kind::lamb) {
      const LambSums sums = lamb_prepare(hyper_, scalars, span(), run_);
      ratio = lamb_trust_ratio(hyper_, sums);
      lamb_apply(hyper_, scalars, ratio, span(), run_);
    } else {
      update(kind_, hyper_, scalars, span(), run_);
    }
  }

  Span span() {
    return {.master = {master.data()},
            .grad = {grad.data()},
            .states = {{states[0].data()}, {states[1].data()}},
            .elems = static_cast<std::int64_t>(master.size())};
  }

 private:
  Kind kind_;
  HyperParams hyper_;
  WorkerPool pool_{1};
  CpuRun run_{.pool = pool_};

 public:
  std::vector<float> master, grad, states[2];
  double ratio = 0.0;
};

TEST(Lion, FollowsItsEquations) {
  const HyperParams hyper = {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  Bench bench(Kind::lion, hyper, 100);
  std::vector<double> p(bench.master.begin(), bench.master.end()), m(p.size());
  for (int k = 1; k <= 20; ++k) {
    bench.step({.lr = 1e-3, .step = k, .grad_factor = 0.5});
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = 0.5 * bench.grad[i];
      const double c = 0.9 * m[i] + 0.1 * g;
      p[i] = p[i] * (1 - 1e-3 * 0.1) - 1e-3 * ((c > 0) - (c < 0));
      m[i] = 0.99 * m[i] + 0.01 * g;
    }
  }
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(bench.master[i], p[i], 1e-5);
}

TEST(Lion, DoesNotMoveElementsWithoutGradient) {
  std::vector<float> master = {1.0f, -2.0f}, grad = {0.0f, -0.0f}, state = {0.0f, 0.0f};
  WorkerPool pool(1);
  update(Kind::lion, {}, {.lr = 0.1},
         {.master = {master.data()}, .grad = {grad.data()}, .states = {{state.data()}}, .elems = 2},
         {.pool = pool});
  EXPECT_THAT(master, ElementsAre(1.0f, -2.0f));
}

TEST(Lamb, FollowsItsEquations) {
  for (const bool inside : {false, true}) {
    const HyperParams hyper = {.eps = 1e-6, .weight_decay = 0.1, .eps_inside_sqrt = inside};
    Bench bench(Kind::lamb, hyper, 100);
    std::vector<double> p(bench.master.begin(), bench.master.end()), m(p.size()), v(p.size());
    for (int k = 1; k <= 20; ++k) {
      bench.step({.lr = 1e-2, .step = k});
      std::vector<double> u(p.size());
      double pp = 0, uu = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = bench.grad[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        u[i] = m[i] / (inside ? std::sqrt(v[i] + 1e-6) : std::sqrt(v[i]) + 1e-6) + 0.1 * p[i];
        pp += p[i] * p[i];
        uu += u[i] * u[i];
      }
      const double ratio = std::min(10.0, std::max(0.01, std::sqrt(pp / uu)));
      EXPECT_NEAR(bench.ratio, ratio, 1e-4 * ratio);
      const double lr = 1e-2 * std::sqrt(1 - std::pow(0.999, k)) / (1 - std::pow(0.9, k));
      for (std::size_t i = 0; i < p.size(); ++i) p[i] -= lr * ratio * u[i];
    }
    for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(bench.master[i], p[i], 1e-4);
  }
}

TEST(Lamb, CutIntoPiecesTakesTheSameStep) {
  const HyperParams hyper = {.weight_decay = 0.1};
  const StepScalars scalars = {.lr = 1e-2, .step = 1};
  Bench whole(Kind::lamb, hyper, 100), cut(Kind::lamb, hyper, 100);
  whole.step(scalars);
  cut.grad = whole.grad;
  WorkerPool pool(1);
  LambSums sums;
  const auto piece = [&](std::int64_t begin, std::int64_t end) {
    return Span{.master = {cut.master.data() + begin},
                .grad = {cut.grad.data() + begin},
                .states = {{cut.states[0].data() + begin}, {cut.states[1].data() + begin}},
                .elems = end - begin};
  };
  for (const Span& span : {piece(0, 33), piece(33, 100)}) {
    sums += lamb_prepare(hyper, scalars, span, {.pool = pool});
  }
  const double ratio = lamb_trust_ratio(hyper, sums);
  EXPECT_NEAR(ratio, whole.ratio, 1e-12 * ratio);
  for (const Span& span : {piece(0, 33), piece(33, 100)}) {
    lamb_apply(hyper, scalars, ratio, span, {.pool = pool});
  }
  for (std::size_t i = 0; i < 100; ++i) EXPECT_FLOAT_EQ(cut.master[i], whole.master[i]);
}

TEST(Lamb, TrustRatioIsClampedAndOneForZeroNorms) {
  const HyperParams hyper;
  EXPECT_EQ(lamb_trust_ratio(hyper, {4.0, 1.0}), 2.0);
  EXPECT_EQ(lamb_trust_ratio(hyper, {1e6, 1.0}), 10.0);
  EXPECT_EQ(lamb_trust_ratio(hyper, {1e-6, 1.0}), 0.01);
  EXPECT_EQ(lamb_trust_ratio(hyper, {0.0, 1.0}), 1.0);
  EXPECT_EQ(lamb_trust_ratio(hyper, {1.0, 0.0}), 1.0);
}

TEST(Adam, WithoutBiasCorrectionTakesTheBareMoments) {
  Bench bench(Kind::adam, {.bias_correction = false}, 10);
  const std::vector<float> start = bench.master;
  bench.step({.lr = 1e-2, .step = 1});
  for (std::size_t i = 0; i < 10; ++i) {
    const double g = bench.grad[i];
    EXPECT_NEAR(bench.master[i], start[i] - 1e-2 * 0.1 * g / (std::sqrt(0.001) * std::fabs(g)),
                1e-6);
  }
}

TEST(Adam, TakesBeta1FromAScheduleThatMovesMomentum) {
  Bench moved(Kind::adamw, {.beta1 = 0.9}, 50), fixed(Kind::adamw, {.beta1 = 0.85}, 50);
  for (int k = 1; k <= 3; ++k) {
    moved.step({.lr = 1e-2, .step = k, .momentum = 0.85});
    fixed.step({.lr = 1e-2, .step = k});
  }
  EXPECT_EQ(moved.master, fixed.master);
}

TEST(GradFactor, IsTheSameAsAScaledGradient) {
  std::vector<float> a = {1.0f, 2.0f}, b = a, grad = {256.0f, -512.0f}, scaled = {1.0f, -2.0f};
  WorkerPool pool(1);
  update(Kind::sgd, {}, {.lr = 0.1, .grad_factor = 1.0 / 256},
         {.master = {a.data()}, .grad = {grad.data()}, .elems = 2}, {.pool = pool});
  update(Kind::sgd, {}, {.lr = 0.1}, {.master = {b.data()}, .grad = {scaled.data()}, .elems = 2},
         {.pool = pool});
  EXPECT_EQ(a, b);
}

TEST(StateNames, AreThoseOfTorchOptim) {
  EXPECT_THAT(state_names(Kind::adamw, {}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(state_names(Kind::lamb, {}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(state_names(Kind::lion, {}), ElementsAre("exp_avg"));
  EXPECT_THAT(state_names(Kind::adagrad, {}), ElementsAre("sum"));
  EXPECT_THAT(state_names(Kind::sgd, {.momentum = 0.9}), ElementsAre("momentum_buffer"));
  EXPECT_TRUE(state_names(Kind::sgd, {}).empty());
  EXPECT_EQ(initial_state(Kind::adagrad, {.initial_accumulator = 0.5}), 0.5);
  EXPECT_EQ(initial_state(Kind::adam, {.initial_accumulator = 0.5}), 0.0);
}

TEST(Check, ListsEveryBadValueOfEveryGroup) {
  check({});
  Options options;
  options.hyper.lr = -1;
  options.groups.push_back({.patterns = {"*"}, .hyper = {.beta1 = 1.5, .nesterov = true}});
  try {
    check(options);
    FAIL() << "bad values were accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, HasSubstr("lr is -1"));
    EXPECT_THAT(error.info().what, HasSubstr("group 0: beta1 is 1.5"));
    EXPECT_THAT(error.info().what, HasSubstr("group 0: nesterov"));
  }
}

TEST(WorkerPool, RunsEveryPartOnceAndOftenInARow) {
  for (const int threads : {1, 2, 4}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(9);
      pool.run(9, [&](int part) { ++calls[static_cast<std::size_t>(part)]; });
      EXPECT_THAT(calls, testing::Each(1));
    }
  }
  EXPECT_THROW(WorkerPool(0), ConfigError);
}

TEST(Simd, ALevelThatCannotRunIsRefusedByName) {
  EXPECT_TRUE(can_run(Simd::scalar));
  EXPECT_TRUE(can_run(best_simd()));
  for (const Simd level : {Simd::avx2, Simd::avx512}) {
    if (can_run(level)) continue;
    try {
      kernels_for(level);
      FAIL() << name(level) << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.info().what, HasSubstr(std::string(name(level))));
    }
  }
}

}  // namespace
}  // namespace capstan::optim
