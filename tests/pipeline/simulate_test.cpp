#include "capstan/pipeline/simulate.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/schedules.h"

namespace capstan::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(Simulate, TellsWhenEachPartWorks) {
  const Schedule schedule = make_schedule(Kind::gpipe, {2, 1, 1});
  const Simulation run = simulate(
      schedule, {{.forward = 2, .backward_inputs = 3, .backward_weights = 1, .transfer = 10},
                 {.forward = 5, .backward_inputs = 1, .backward_weights = 1, .transfer = 100}});
  ASSERT_EQ(run.stages[0].size(), 2U);
  EXPECT_EQ(run.stages[0][0].end, 2);
  EXPECT_EQ(run.stages[1][0].begin, 12);  // when the output has arrived
  EXPECT_EQ(run.stages[1][1].end, 19);
  EXPECT_EQ(run.stages[0][1].begin, 119);
  EXPECT_EQ(run.length, 123);
  EXPECT_EQ(run.busy(0), 6);
  EXPECT_EQ(run.busy(1), 7);
  EXPECT_DOUBLE_EQ(run.efficiency(), 13.0 / 246);
}

TEST(Simulate, TransfersOfAllForwardsOverlapButForTheFirst) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int m = 1; m <= 8; ++m) {
      const Simulation run =
          simulate(make_schedule(Kind::gpipe, {stages, m, 1}),
                   {{.forward = 4, .backward_inputs = 4, .backward_weights = 4, .transfer = 3}});
      ASSERT_EQ(run.length, (m + stages - 1) * 12 + 2 * (stages - 1) * 3);
    }
  }
}

TEST(Simulate, TheSlowestPartSetsThePace) {
  std::vector<Costs> costs(4);
  costs[2] = {.forward = 10, .backward_inputs = 10, .backward_weights = 10};
  const int m = 32;
  const Simulation run = simulate(make_schedule(Kind::one_f_one_b, {4, m, 1}), costs);
  EXPECT_EQ(run.length, 30 * m + 2 * (1 + 2));  // the two before it fill and drain
}

// Each receive right before its use, each send right after its origin: what one writes at first.
Schedule naive() {
  Schedule schedule = {.shape = {.stages = 2, .micro_batches = 2}};
  schedule.stages = {{{Op::load, 0},
                      {Op::forward, 0},
                      {Op::send_output, 0},
                      {Op::load, 1},
                      {Op::forward, 1},
                      {Op::send_output, 1},
                      {Op::receive_gradient, 0},
                      {Op::backward, 0},
                      {Op::receive_gradient, 1},
                      {Op::backward, 1}},
                     {{Op::receive_input, 0},
                      {Op::load, 0},
                      {Op::forward, 0},
                      {Op::backward, 0},
                      {Op::send_gradient, 0},
                      {Op::receive_input, 1},
                      {Op::load, 1},
                      {Op::forward, 1},
                      {Op::backward, 1},
                      {Op::send_gradient, 1}}};
  return schedule;
}

TEST(Simulate, FindsStagesThatWaitForEachOther) {
  EXPECT_EQ(simulate(naive(), {Costs{}}).length, 9);
  try {
    simulate(naive(), {Costs{}}, Transport::rendezvous);
    FAIL() << "it ran through";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stage 0 in send_output 1, stage 1 in send_gradient 0"));
    EXPECT_THAT(error.what(), HasSubstr("2 stages, 2 micro-batches"));
  }
}

TEST(Simulate, FindsAReceiveThatNobodySends) {
  Schedule schedule = naive();
  schedule.stages[0].erase(schedule.stages[0].begin() + 2);
  try {
    simulate(schedule, {Costs{}});
    FAIL() << "it ran through";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stage 1 in forward 0"));
  }
  schedule = naive();
  schedule.stages[0].insert(schedule.stages[0].begin(), {Op::receive_input, 0});
  for (const Transport transport : {Transport::asynchronous, Transport::rendezvous}) {
    EXPECT_THROW(simulate(schedule, {Costs{}}, transport), InternalError);
  }
}

}  // namespace
}  // namespace capstan::pipeline
