#include "capstan/pipeline/deepspeed_order.h"

#include <string>

#include <gtest/gtest.h>

#include "capstan/pipeline/check.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {
namespace {

// "rA0 L0 F0": with the buffer instead of the micro-batch; * is the end of the step.
std::string told(const std::vector<Instruction>& step, int buffers) {
  std::string text;
  for (const Instruction& instruction : step) {
    if (instruction.op == Op::reduce_tied) text += text.empty() ? "*" : " *";
    if (instruction.op >= Op::reduce) continue;
    const char* name = "";
    switch (instruction.op) {
      case Op::load:
        name = "L";
        break;
      case Op::forward:
        name = "F";
        break;
      case Op::backward:
        name = "B";
        break;
      case Op::send_output:
        name = "sA";
        break;
      case Op::receive_input:
        name = "rA";
        break;
      case Op::send_gradient:
        name = "sG";
        break;
      case Op::receive_gradient:
        name = "rG";
        break;
      default:
        name = "?";
    }
    if (!text.empty()) text += ' ';
    text += name + std::to_string(instruction.micro_batch % buffers);
  }
  return text;
}

std::vector<std::string> told(const Shape& shape, int stage) {
  std::vector<std::string> lines;
  for (const auto& step : deepspeed_train_steps(shape, stage)) {
    lines.push_back(told(step, deepspeed_train_buffers(shape, stage)));
  }
  return lines;
}

TEST(DeepspeedOrder, TwoStagesAndFourMicroBatchesAreWhatDeepspeedDoes) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(told({2, 4, 1}, 0), (Lines{"L0 F0", "sA0", "L1 F1", "rG0 sA1 B0", "L0 F0", "rG1 sA0 B1",
                                       "L1 F1", "rG0 sA1 B0", "", "rG1 B1 *"}));
  EXPECT_EQ(told({2, 4, 1}, 1), (Lines{"", "rA0 L0 F0", "B0", "sG0 rA1 L1 F1", "B1",
                                       "sG1 rA0 L0 F0", "B0", "sG0 rA1 L1 F1", "B1", "sG1 *"}));
}

std::vector<int> steps_with(Op op, const Shape& shape, int stage) {
  std::vector<int> found;
  const auto steps = deepspeed_train_steps(shape, stage);
  for (int i = 0; i < std::ssize(steps); ++i) {
    for (const Instruction& instruction : steps[i]) {
      if (instruction.op == op) found.push_back(i);
    }
  }
  return found;
}

TEST(DeepspeedOrder, FourStagesAndFiveMicroBatchesWorkAtItsSteps) {
  const Shape shape = {4, 5, 1};
  using Steps = std::vector<int>;
  EXPECT_EQ(deepspeed_train_steps(shape, 2).size(), 16U);
  EXPECT_EQ(steps_with(Op::forward, shape, 0), (Steps{0, 2, 4, 6, 8}));
  EXPECT_EQ(steps_with(Op::backward, shape, 0), (Steps{7, 9, 11, 13, 15}));
  EXPECT_EQ(steps_with(Op::forward, shape, 3), (Steps{3, 5, 7, 9, 11}));
  EXPECT_EQ(steps_with(Op::backward, shape, 3), (Steps{4, 6, 8, 10, 12}));
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(deepspeed_train_buffers(shape, stage), (Steps{4, 3, 2, 2})[stage]);
  }
  EXPECT_EQ(deepspeed_train_buffers({4, 1, 1}, 0), 2);
}

TEST(DeepspeedOrder, InferenceAlternatesSendsAndReceives) {
  const Shape shape = {2, 3, 1};
  const auto told_steps = [&](int stage) {
    std::vector<std::string> lines;
    for (const auto& step : deepspeed_inference_steps(shape, stage)) {
      lines.push_back(told(step, kDeepspeedInferenceBuffers));
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(told_steps(0), (Lines{"L0 F0", "L1 sA0 F1", "L0 sA1 F0", "sA0"}));
  EXPECT_EQ(told_steps(1), (Lines{"", "L0 rA0 F0", "L1 rA1 F1", "L0 rA0 F0"}));
  for (int stages = 1; stages <= 16; ++stages) {
    for (int m = 1; m <= 16; ++m) {
      Schedule schedule = {.shape = {stages, m, 1}, .training = false};
      for (int stage = 0; stage < stages; ++stage) {
        auto& list = schedule.stages.emplace_back();
        for (const auto& step : deepspeed_inference_steps(schedule.shape, stage)) {
          list.insert(list.end(), step.begin(), step.end());
        }
      }
      ASSERT_EQ(problems_of(schedule), std::vector<std::string>());
      ASSERT_EQ(simulate(schedule, {Costs{}}, Transport::rendezvous).length, m + stages - 1);
    }
  }
}

}  // namespace
}  // namespace capstan::pipeline
