#include "capstan/profile/module_costs.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<ModuleCost> model() {
  return {{0, "", "Net", 1500, {4000, 8000, 0}, {0.002, 0.004, 0}},
          {1, "first", "Linear", 500, {1000, 2000, 0}, {0.0005, 0.001, 0}},
          {1, "second", "Linear", 900, {2000, 4000, 0}, {0.001, 0.002, 0}},
          {1, "act", "Tanh", 0, {0, 0, 0}, {0, 0, 0}},
          {2, "inner", "Norm", 100, {1000, 2000, 0}, {0, 0, 0}}};
}

std::string value_of(const std::string& report, const std::string& label) {
  const std::size_t begin = report.find("\n" + label);
  if (begin == std::string::npos) return "missing";
  const std::string line = report.substr(begin + 1, report.find('\n', begin + 1) - begin - 1);
  return line.substr(70);
}

TEST(ModuleCosts, TheSummaryHasTheFiguresOfTheRun) {
  const CostFacts facts{.step = 5,
                        .world_size = 8,
                        .data_ranks = 4,
                        .model_ranks = 2,
                        .micro_batch = 3,
                        .micro_batches = 2,
                        .forward_s = 0.002,
                        .backward_s = 0.004,
                        .step_s = 0.012};
  const std::string report = costs_report(model(), facts, {});
  EXPECT_THAT(report, HasSubstr("Profile Summary at step 5:"));
  EXPECT_EQ(value_of(report, "params per GPU: "), "1.5 K");
  EXPECT_EQ(value_of(report, "params of model"), "3 K");
  EXPECT_EQ(value_of(report, "fwd MACs per GPU: "), "2 KMACs");
  EXPECT_EQ(value_of(report, "bwd flops per GPU: "), "8 K");
  EXPECT_EQ(value_of(report, "fwd latency: "), "2.00 ms");
  EXPECT_EQ(value_of(report, "fwd FLOPS per GPU"), "2 MFLOPS");
  EXPECT_EQ(value_of(report, "FLOPS per GPU = (fwd"), "2 MFLOPS");
  EXPECT_EQ(value_of(report, "samples/second: "), "2000.00");
}

TEST(ModuleCosts, TheFactorCountsWhereNoRecomputationWasSeen) {
  std::vector<ModuleCost> modules = model();
  const CostFacts facts{.backward_s = 1.0, .recompute_factor = 0.5};
  EXPECT_EQ(value_of(costs_report(modules, facts, {}), "recomputed flops per GPU: "), "2 K");
  EXPECT_EQ(value_of(costs_report(modules, facts, {}), "bwd FLOPS per GPU"), "10 KFLOPS");
  modules[0].flops[2] = 3000;
  EXPECT_EQ(value_of(costs_report(modules, facts, {}), "recomputed flops per GPU: "), "3 K");
}

TEST(ModuleCosts, ClassesAreSummedPerDepthDownToTheDeepest) {
  EXPECT_EQ(top_modules(model(), {.top_modules = 2}),
            "depth 0:\n    params      - Net 1.5 K\n    MACs        - Net 2 K\n"
            "    fwd latency - Net 2.00 ms\n"
            "depth 1:\n    params      - Linear 1.4 K, Tanh 0\n"
            "    MACs        - Linear 1.5 K, Tanh 0\n"
            "    fwd latency - Linear 1.50 ms, Tanh -\n"
            "depth 2:\n    params      - Norm 100\n    MACs        - Norm 500\n"
            "    fwd latency - Norm -\n");
  EXPECT_THAT(top_modules(model(), {.depth = 1}), Not(HasSubstr("depth 2")));
  EXPECT_THAT(top_modules(model(), {.top_modules = 1}), Not(HasSubstr("Tanh")));
}

TEST(ModuleCosts, TheTableHasALinePerModuleDownToTheDepth) {
  const std::string table = module_table(model(), 1);
  EXPECT_THAT(table, HasSubstr("\n  second: Linear "));
  EXPECT_THAT(table, Not(HasSubstr("inner")));
  EXPECT_THAT(module_table(model()), HasSubstr("\n    inner: Norm"));
  EXPECT_THAT(costs_report(model(), {}, {.detailed = false}), Not(HasSubstr("second: Linear")));
  EXPECT_THAT(costs_report(model(), {}, {.top_modules = 0}), Not(HasSubstr("depth 0")));
}

TEST(ModuleCosts, NumbersHaveFourDigits) {
  EXPECT_EQ(with_prefix(0), "0");
  EXPECT_EQ(with_prefix(999, "MACs"), "999 MACs");
  EXPECT_EQ(with_prefix(1234), "1.234 K");
  EXPECT_EQ(with_prefix(6.5e15), "6.5 P");
}

}  // namespace
}  // namespace capstan::profile
