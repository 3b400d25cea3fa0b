#include "capstan/shard/plan.h"

#include <gmock/gmock.h>

#include "capstan/base/error.h"

namespace capstan::shard {
namespace {

using testing::ElementsAre;

ParamSpec param(std::string name, std::int64_t numel) {
  return {.name = std::move(name), .sizes = {numel}};
}

PlanOptions options(int world_size) {
  return {.shards = world_size,
          .align_bytes = 64,
          .persistence_threshold_elems = 10,
          .persistence_total_elems = 1'000'000};
}

TEST(Plan, SmallParametersAndThoseOfNoBoundaryAreResidentAndComeFirst) {
  const Plan plan = make_plan({param("a.weight", 100), param("a.bias", 5), param("head", 300)},
                              {{.name = "a", .params = {0, 1}}}, options(2));
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_TRUE(plan.units[0].resident);
  EXPECT_THAT(plan.units[0].params, ElementsAre(1, 2));
  EXPECT_EQ(plan.units[1].name, "a");
  EXPECT_THAT(plan.boundary_units[0], ElementsAre(1));
}

TEST(Plan, ASharedParameterBelongsToItsFirstUserAndIsGatheredForAll) {
  const Plan plan = make_plan({param("embed", 100), param("block", 100)},
                              {{.name = "embed", .params = {0}},
                               {.name = "block", .params = {1}},
                               {.name = "head", .params = {0}}},
                              options(1));
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_THAT(plan.boundary_units, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(0)));
}

TEST(Plan, FrozenParametersFormUnitsOfTheirOwn) {
  std::vector<ParamSpec> params = {param("w", 100), param("lora", 50)};
  params[0].trainable = false;
  const Plan plan = make_plan(params, {{.name = "block", .params = {0, 1}}}, options(1));
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_FALSE(plan.units[0].trainable);
  EXPECT_EQ(plan.units[0].name, "block (frozen)");
  EXPECT_THAT(plan.boundary_units[0], ElementsAre(0, 1));
  EXPECT_EQ(plan.trainable_elems(), 50);
}

TEST(Plan, WhatIsASliceAndWhatIsACopyFormUnitsOfTheirOwn) {
  std::vector<ParamSpec> params = {param("linear", 100), param("norm", 50)};
  params[0].slice = {{200}, {{100}, {100}}};
  const std::vector<BoundarySpec> block = {{.name = "block", .params = {0, 1}}};
  EXPECT_EQ(make_plan(params, block, options(1)).units.size(), 1U);
  PlanOptions split = options(1);
  split.axes.copies = layout::Axis::tensor;
  const Plan plan = make_plan(params, block, split);
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_THAT(plan.boundary_units[0], ElementsAre(0, 1));
  EXPECT_EQ(plan.units[0].name, "block");
  EXPECT_EQ(plan.units[0].axes.copies, layout::Axes{});
  EXPECT_THAT(plan.units[0].params, ElementsAre(0));
  EXPECT_EQ(plan.units[1].name, "block (copied)");
  EXPECT_EQ(plan.units[1].axes.copies, layout::Axis::tensor);
  EXPECT_NE(fingerprint(plan), fingerprint(make_plan(params, block, options(1))));
}

TEST(Plan, ParametersWhoseGradientsTravelInAnotherDtypeFormUnitsOfTheirOwn) {
  std::vector<ParamSpec> params = {param("linear", 100), param("norm", 50),
                                   param("linear.bias", 5)};
  params[0].travel = DType::bf16;
  params[2].travel = DType::bf16;
  const Plan plan = make_plan(params, {{.name = "block", .params = {0, 1, 2}}}, options(2));
  ASSERT_EQ(plan.units.size(), 3U);
  EXPECT_TRUE(plan.units[0].resident);
  EXPECT_EQ(plan.units[0].travel, DType::bf16);
  EXPECT_FALSE(plan.units[1].travel.has_value());
  EXPECT_THAT(plan.units[1].params, ElementsAre(1));
  EXPECT_THAT(plan.units[2].params, ElementsAre(0));
  EXPECT_THAT(plan.boundary_units[0], ElementsAre(1, 2));
  params[0].travel.reset();
  EXPECT_NE(fingerprint(plan), fingerprint(make_plan(params, {}, options(2))));
}

TEST(Plan, ResidentParametersStopAtTheTotal) {
  PlanOptions limited = options(1);
  limited.persistence_total_elems = 12;
  const Plan plan = make_plan({param("a", 8), param("b", 8), param("c", 4)},
                              {{.name = "m", .params = {0, 1, 2}}}, limited);
  EXPECT_THAT(plan.units[0].params, ElementsAre(0, 2));
  EXPECT_THAT(plan.units[1].params, ElementsAre(1));
}

TEST(Plan, FingerprintTellsModelsApart) {
  const auto print = [](std::int64_t numel, std::string name) {
    return fingerprint(make_plan({param(std::move(name), numel)}, {}, options(2)));
  };
  EXPECT_EQ(print(100, "w"), print(100, "w"));
  EXPECT_NE(print(100, "w"), print(101, "w"));
  EXPECT_NE(print(100, "w"), print(100, "v"));
  const auto shaped = [](std::vector<std::int64_t> sizes) {
    return fingerprint(make_plan({{.name = "w", .sizes = std::move(sizes)}}, {}, options(2)));
  };
  EXPECT_NE(shaped({4, 25}), shaped({25, 4}));
}

}  // namespace
}  // namespace capstan::shard
