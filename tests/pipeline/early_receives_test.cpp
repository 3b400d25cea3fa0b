#include "capstan/pipeline/early_receives.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/pipeline/check.h"
#include "capstan/pipeline/schedules.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {
namespace {

bool is_receive(const Instruction& instruction) {
  return instruction.op == Op::receive_input || instruction.op == Op::receive_gradient;
}

// The best there is, with no bound on the memory of what has arrived.
Schedule all_at_once(Schedule schedule) {
  for (auto& list : schedule.stages) {
    std::stable_partition(list.begin(), list.end(), is_receive);
  }
  return schedule;
}

// The most receives that have been started and not been used.
int most_started(const std::vector<Instruction>& list) {
  int started = 0;
  int most = 0;
  for (const Instruction& instruction : list) {
    if (is_receive(instruction)) most = std::max(most, ++started);
    const bool uses = instruction.op == Op::forward || instruction.op == Op::backward ||
                      instruction.op == Op::backward_inputs;
    if (uses && started > 0) --started;  // the first and last parts use what they loaded
  }
  return most;
}

TEST(EarlyReceives, TwoAheadIsAsFastAsAllAtOnceWhileATransferTakesNoLongerThanTwoForwards) {
  bool late_ones_cost = false;
  for (const std::string& name : kind_names()) {
    for (const Shape& shape : {Shape{2, 2}, Shape{2, 7}, Shape{3, 12}, Shape{4, 4}, Shape{4, 15},
                               Shape{8, 16}, Shape{2, 16, 2}, Shape{3, 12, 3}, Shape{4, 8, 4}}) {
      if (shape.chunks > 1 && name != "interleaved" && name != "inference") continue;
      if (name == "interleaved" && shape.micro_batches % shape.stages != 0) continue;
      const Schedule schedule = make_schedule(kind_named(name), shape);
      const Schedule early = with_early_receives(schedule, 2);
      ASSERT_EQ(problems_of(early, Link::per_direction), std::vector<std::string>());
      for (const auto& list : early.stages) ASSERT_LE(most_started(list), 5);
      for (const Costs& costs : {Costs{4, 4, 4, 1}, Costs{4, 4, 4, 4}, Costs{4, 4, 4, 8},
                                 Costs{4, 6, 3, 2}, Costs{5, 4, 1, 2}}) {
        const std::int64_t best = simulate(all_at_once(schedule), {costs}).length;
        ASSERT_EQ(simulate(early, {costs}).length, best) << name << ", " << shape.stages;
        late_ones_cost = late_ones_cost || simulate(schedule, {costs}).length > best;
      }
    }
  }
  EXPECT_TRUE(late_ones_cost);
}

TEST(EarlyReceives, NoneAheadChangesNothing) {
  const Schedule schedule = make_schedule(Kind::one_f_one_b, {3, 6});
  EXPECT_TRUE(with_early_receives(schedule, 0).stages == schedule.stages);
}

TEST(EarlyReceives, ChangeNothingButWhereReceivesStand) {
  const Schedule schedule = make_schedule(Kind::interleaved, {3, 6, 2});
  const Schedule early = with_early_receives(schedule, 2);
  EXPECT_FALSE(early.stages == schedule.stages);
  EXPECT_TRUE(all_at_once(early).stages == all_at_once(schedule).stages);
}

}  // namespace
}  // namespace capstan::pipeline
