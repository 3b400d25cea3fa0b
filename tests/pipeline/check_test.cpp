#include "capstan/pipeline/check.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/pipeline/schedules.h"

namespace capstan::pipeline {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::pair<Kind, Shape>, 7> kSmall = {{{Kind::gpipe, {3, 2, 1}},
                                                           {Kind::one_f_one_b, {3, 4, 1}},
                                                           {Kind::interleaved, {2, 4, 2}},
                                                           {Kind::interleaved, {1, 2, 2}},
                                                           {Kind::zb_h1, {3, 4, 1}},
                                                           {Kind::deepspeed, {3, 4, 1}},
                                                           {Kind::inference, {2, 3, 2}}}};

TEST(Check, MissesNoInstructionThatIsLeftOutOrThereTwice) {
  for (const auto& [kind, shape] : kSmall) {
    const Schedule sound = make_schedule(kind, shape);
    ASSERT_EQ(problems_of(sound), std::vector<std::string>());
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (std::size_t at = 0; at < sound.stages[stage].size(); ++at) {
        Schedule broken = sound;
        std::vector<Instruction>& list = broken.stages[stage];
        const Instruction instruction = list[at];
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), instruction);
        EXPECT_FALSE(problems_of(broken).empty()) << to_string(instruction) << " twice";
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at),
                   list.begin() + static_cast<std::ptrdiff_t>(at) + 2);
        EXPECT_FALSE(problems_of(broken).empty()) << to_string(instruction) << " missing";
      }
    }
  }
}

TEST(Check, FindsWorkBeforeWhatItNeeds) {
  // Neighbours that need each other cannot change places; others can, but for the order on links.
  const auto needs = [](const Instruction& later, const Instruction& earlier) {
    const bool same = later.micro_batch == earlier.micro_batch && later.chunk == earlier.chunk;
    const auto is = [&](Op a, Op b) { return same && earlier.op == a && later.op == b; };
    return is(Op::load, Op::forward) || is(Op::receive_input, Op::forward) ||
           is(Op::forward, Op::send_output) || is(Op::forward, Op::backward) ||
           is(Op::receive_gradient, Op::backward) || is(Op::backward, Op::send_gradient) ||
           is(Op::receive_gradient, Op::backward_inputs) ||
           is(Op::backward_inputs, Op::send_gradient) ||
           is(Op::backward_inputs, Op::backward_weights) || later.op == Op::step ||
           (later.op == Op::reduce && earlier.op == Op::backward);
  };
  int tried = 0;
  for (const auto& [kind, shape] : kSmall) {
    const Schedule sound = make_schedule(kind, shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (std::size_t at = 0; at + 1 < sound.stages[stage].size(); ++at) {
        Schedule broken = sound;
        std::vector<Instruction>& list = broken.stages[stage];
        if (!needs(list[at + 1], list[at])) continue;
        std::swap(list[at], list[at + 1]);
        EXPECT_FALSE(problems_of(broken).empty())
            << to_string(list[at]) << " before " << to_string(list[at + 1]);
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 50);
}

TEST(Check, TellsWhereTwoStagesDisagreeAboutTheOrderOfTransfers) {
  Schedule schedule = make_schedule(Kind::one_f_one_b, {2, 4, 1});
  std::vector<Instruction>& list = schedule.stages[0];
  const auto send = std::find(list.begin(), list.end(), Instruction{Op::send_output, 1});
  const auto receive = std::find(list.begin(), list.end(), Instruction{Op::receive_gradient, 0});
  ASSERT_LT(send, receive);
  std::iter_swap(send, receive);
  EXPECT_THAT(problems_of(schedule),
              ::testing::ElementsAre(
                  "between stages 0 and 1, transfer 1 is the gradient of micro-batch 0 from part 1 "
                  "on the one side and the output of micro-batch 1 from part 0 on the other"));
}

TEST(Check, FindsWhatIsBeyondTheShape) {
  Schedule schedule = make_schedule(Kind::gpipe, {1, 1, 1});
  schedule.stages[0].insert(schedule.stages[0].begin(), {Op::forward, 1, 0});
  EXPECT_THAT(problems_of(schedule).at(0), HasSubstr("beyond the pipeline's shape"));
  schedule.shape.stages = 2;
  EXPECT_THAT(problems_of(schedule).at(0), HasSubstr("1 lists for 2 stages"));
  Schedule forwards = make_schedule(Kind::inference, {1, 1, 1});
  forwards.stages[0].push_back({Op::backward, 0, 0});
  EXPECT_THAT(problems_of(forwards).at(0), HasSubstr("backward 0 is only for training"));
  Schedule lonely = make_schedule(Kind::inference, {1, 1, 1});
  lonely.stages[0].push_back({Op::send_output, 0, 0});
  EXPECT_THAT(problems_of(lonely).at(0), HasSubstr("send_output 0 has no other side"));
}

}  // namespace
}  // namespace capstan::pipeline
