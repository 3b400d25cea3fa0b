#include "capstan/pipeline/schedules.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/activations.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {
namespace {

using ::testing::HasSubstr;

// "F0 F1 B0 W0", with the chunk behind a point where there are several.
std::string work_of(const Schedule& schedule, int stage) {
  std::string text;
  for (const Instruction& instruction : schedule.stages[stage]) {
    const char* name = instruction.op == Op::forward            ? "F"
                       : instruction.op == Op::backward         ? "B"
                       : instruction.op == Op::backward_inputs  ? "I"
                       : instruction.op == Op::backward_weights ? "W"
                                                                : "";
    if (*name == '\0') continue;
    if (!text.empty()) text += ' ';
    text += name + std::to_string(instruction.micro_batch);
    if (schedule.shape.chunks > 1) text += "." + std::to_string(instruction.chunk);
  }
  return text;
}

std::string list_of(const Schedule& schedule, int stage) {
  std::string text;
  for (const Instruction& instruction : schedule.stages[stage]) {
    text += (text.empty() ? "" : ", ") + to_string(instruction);
  }
  return text;
}

TEST(Schedules, HaveTheirOrderOfWork) {
  EXPECT_EQ(work_of(make_schedule(Kind::gpipe, {2, 3, 1}), 0), "F0 F1 F2 B0 B1 B2");
  const Schedule plain = make_schedule(Kind::one_f_one_b, {3, 4, 1});
  EXPECT_EQ(work_of(plain, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(work_of(plain, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  const Schedule zero = make_schedule(Kind::zb_h1, {3, 4, 1});
  EXPECT_EQ(work_of(zero, 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(work_of(zero, 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  const Schedule interleaved = make_schedule(Kind::interleaved, {2, 2, 2});
  EXPECT_EQ(work_of(interleaved, 0), "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
  EXPECT_EQ(work_of(interleaved, 1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
  EXPECT_EQ(work_of(make_schedule(Kind::inference, {2, 3, 2}), 1), "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1");
}

TEST(Schedules, ReceiveBeforeTheWorkThatHidesItAndSendBeforeTheyReduce) {
  const Schedule schedule = make_schedule(Kind::one_f_one_b, {2, 2, 1});
  EXPECT_EQ(list_of(schedule, 0),
            "load 0, forward 0, send_output 0, load 1, forward 1, send_output 1, "
            "receive_gradient 0, backward 0, receive_gradient 1, backward 1, reduce, reduce_tied, "
            "step");
  EXPECT_EQ(list_of(schedule, 1),
            "receive_input 0, receive_input 1, load 0, forward 0, backward 0, send_gradient 0, "
            "load 1, forward 1, backward 1, send_gradient 1, reduce, reduce_tied, step");
}

TEST(Schedules, ReduceAChunkWhileOthersAreStillAtWork) {
  const Schedule schedule = make_schedule(Kind::interleaved, {2, 2, 2});
  const std::string list = list_of(schedule, 0);
  EXPECT_LT(list.find("reduce of chunk 1"), list.find("backward 0,"));
  EXPECT_GT(list.find("reduce, reduce_tied, step"), list.find("backward 1,"));
}

TEST(Schedules, InterleavedIdlesAndHoldsWhatIsKnownOfIt) {
  // Four stages, eight micro-batches; forward 1 and backward 2 for a stage, in quarters.
  const auto excess = [](int chunks) {
    const std::int64_t unit = 4 / chunks;
    const Schedule schedule = make_schedule(Kind::interleaved, {4, 8, chunks});
    const Costs costs = {.forward = unit, .backward_inputs = unit, .backward_weights = unit};
    return static_cast<double>(simulate(schedule, {costs}).length) / 4 - 8 * 3;
  };
  EXPECT_EQ(excess(1), 9);
  EXPECT_EQ(excess(2), 4.5);
  EXPECT_EQ(excess(4), 2.25);
  EXPECT_EQ(peak_activations(make_schedule(Kind::interleaved, {4, 8, 2}))[0], 11);  // 5.5 whole
}

TEST(Schedules, ZeroBubbleIsNeverSlowerThanWholeBackwards) {
  EXPECT_EQ(simulate(make_schedule(Kind::zb_h1, {4, 8, 1}), {Costs{}}).length, 27);
  EXPECT_EQ(simulate(make_schedule(Kind::one_f_one_b, {4, 8, 1}), {Costs{}}).length, 33);
  for (int stages = 1; stages <= 8; ++stages) {
    for (int m = 1; m <= 12; ++m) {
      const Schedule split = make_schedule(Kind::zb_h1, {stages, m, 1});
      const Schedule whole = make_schedule(Kind::one_f_one_b, {stages, m, 1});
      for (const Costs& costs : {Costs{2, 1, 3}, Costs{1, 1, 5}, Costs{5, 1, 2}, Costs{1, 5, 2},
                                 Costs{1, 1, 1, 1}, Costs{3, 2, 2, 4}}) {
        ASSERT_LE(simulate(split, {costs}).length, simulate(whole, {costs}).length)
            << stages << " stages, " << m << " micro-batches, " << costs.backward_weights;
      }
    }
  }
}

TEST(Schedules, AreFoundByName) {
  for (const std::string& name : kind_names()) EXPECT_EQ(to_string(kind_named(name)), name);
  try {
    kind_named("1f1c");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no pipeline schedule \"1f1c\""));
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"1f1b\"?"));
  }
}

std::string refusal(Kind kind, const Shape& shape) {
  try {
    make_schedule(kind, shape);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Schedules, RefuseShapesThatTheyCannotHaveAndSayWhichTheyCan) {
  EXPECT_THAT(refusal(Kind::gpipe, {0, 4, 1}),
              HasSubstr("0 stages, 4 micro-batches and 1 chunk per stage"));
  EXPECT_THAT(refusal(Kind::gpipe, {2, 0, 1}), HasSubstr("use at least one of each"));
  EXPECT_THAT(refusal(Kind::gpipe, {2147483647, 2147483647, 1}), HasSubstr("use fewer"));
  EXPECT_THAT(refusal(Kind::zb_h1, {2, 4, 2}), HasSubstr("use the schedule interleaved"));
  EXPECT_THAT(refusal(Kind::interleaved, {4, 6, 2}), HasSubstr("use 4 or 8 micro-batches"));
  EXPECT_THAT(refusal(Kind::interleaved, {4, 3, 2}), HasSubstr("use 4 micro-batches"));
  EXPECT_EQ(refusal(Kind::interleaved, {4, 6, 1}), "");
}

}  // namespace
}  // namespace capstan::pipeline
