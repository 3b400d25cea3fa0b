#include "capstan/shard/homes.h"

#include <gtest/gtest.h>

namespace capstan::shard {
namespace {

using store::Placement;

constexpr Policy kStage1{Gather::per_step, ReduceSchedule::at_step};
constexpr Policy kStage3{Gather::per_use, ReduceSchedule::per_backward};

// Four units of 100 elements each, the first of them frozen.
Plan four_units() {
  std::vector<ParamSpec> params;
  std::vector<BoundarySpec> boundaries;
  for (int i = 0; i < 4; ++i) {
    params.push_back({.name = std::to_string(i), .sizes = {100}, .trainable = i > 0});
    boundaries.push_back({.name = std::to_string(i), .params = {i}});
  }
  return make_plan(params, boundaries, {.persistence_threshold_elems = 0});
}

std::string placed(const std::vector<UnitHomes>& homes, Placement UnitHomes::* kind) {
  std::string text;
  for (const UnitHomes& unit : homes) {
    text += unit.*kind == Placement::device ? 'd' : unit.*kind == Placement::host ? 'h' : 'n';
  }
  return text;
}

TEST(Homes, AreTheDevicesUnlessAskedOtherwise) {
  const auto homes = choose_homes(four_units(), kStage3, {});
  EXPECT_EQ(homes, std::vector<UnitHomes>(4));
}

TEST(Homes, TakeTheLastUnitsUpToTheirShare) {
  const Plan plan = four_units();
  const auto states = [&plan](double share) {
    const Homes homes{.optimizer = {.placement = Placement::host, .share = share}};
    return placed(choose_homes(plan, kStage1, homes), &UnitHomes::states);
  };
  EXPECT_EQ(states(0), "dddd");
  EXPECT_EQ(states(0.01), "dddh");
  EXPECT_EQ(states(0.5), "ddhh");
  EXPECT_EQ(states(1), "dhhh");  // what is frozen has none
}

TEST(Homes, HoldShardsOnlyOfUnitsThatAreReleased) {
  const Homes homes{.params = {.placement = Placement::nvme}};
  EXPECT_EQ(placed(choose_homes(four_units(), kStage3, homes), &UnitHomes::params), "nnnn");
  EXPECT_EQ(placed(choose_homes(four_units(), kStage1, homes), &UnitHomes::params), "dddd");
}

TEST(Homes, GradientsAreWhereTheUpdateRuns) {
  EXPECT_EQ(UnitHomes{}.gradients(), Placement::device);
  EXPECT_EQ(UnitHomes{.states = Placement::host}.gradients(), Placement::host);
  EXPECT_EQ(UnitHomes{.states = Placement::nvme}.gradients(), Placement::host);
}

TEST(Homes, MoveOneUnitAtATimeStatesFirst) {
  const Plan plan = four_units();
  const Homes most{.optimizer = {.placement = Placement::host},
                   .params = {.placement = Placement::host, .share = 0.5}};
  Homes homes = most;
  homes.optimizer.share = homes.params.share = 0;
  std::vector<std::string> steps;
  while (move_one_more(plan, kStage3, most, homes)) {
    const auto chosen = choose_homes(plan, kStage3, homes);
    steps.push_back(placed(chosen, &UnitHomes::states) + " " + placed(chosen, &UnitHomes::params));
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"dddh dddd", "ddhh dddd", "dhhh dddd", "dhhh dddh",
                                             "dhhh ddhh"}));
}

}  // namespace
}  // namespace capstan::shard
