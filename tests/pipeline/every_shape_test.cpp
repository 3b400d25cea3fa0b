// The promises of all schedules, for every number of stages, micro-batches and chunks up to a
// limit.
#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/activations.h"
#include "capstan/pipeline/check.h"
#include "capstan/pipeline/schedules.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {
namespace {

constexpr int kStages = 16;
constexpr int kMicroBatches = 64;
constexpr int kChunks = 4;

bool can_have(Kind kind, const Shape& shape) {
  if (shape.chunks == 1 || kind == Kind::inference) return true;
  return kind == Kind::interleaved && shape.micro_batches % shape.stages == 0;
}

// The table in schedules.h, with what a group that is not full costs; in chunks.
std::int64_t idle(Kind kind, const Shape& shape, const Costs& costs) {
  const auto& [f, b, w, transfer] = costs;
  const std::int64_t fill = shape.stages - 1;
  const int rest = shape.micro_batches % shape.stages;
  const int lacking = rest == 0 ? 0 : (shape.stages - rest) * (shape.chunks - 1);
  if (kind == Kind::inference) return (fill + lacking) * f;
  if (kind != Kind::zb_h1) return fill * (f + b + w);
  return fill * (f + b - w) + std::max(0, shape.stages - shape.micro_batches) * w;
}

int activations(Kind kind, const Shape& shape, int stage) {
  const int behind = shape.stages - stage - 1;
  const int all = shape.micro_batches * shape.chunks;
  if (kind == Kind::inference) return 0;
  if (kind == Kind::gpipe) return all;
  if (kind == Kind::zb_h1) return std::min(shape.stages, all);
  if (shape.chunks == 1) return std::min(behind + 1, all);
  return std::min(2 * behind + (shape.chunks - 1) * shape.stages + 1, all);
}

class EveryShape : public ::testing::TestWithParam<Kind> {
 protected:
  template <class Check>
  void for_all(const Check& check) {
    for (int stages = 1; stages <= kStages; ++stages) {
      for (int m = 1; m <= kMicroBatches; ++m) {
        for (int chunks = 1; chunks <= kChunks; ++chunks) {
          const Shape shape = {stages, m, chunks};
          if (!can_have(GetParam(), shape)) continue;
          SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(m) +
                       " micro-batches, " + std::to_string(chunks) + " chunks");
          check(shape, make_schedule(GetParam(), shape));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

// No two parts of the same work, so that no sum of them hides another.
constexpr Costs kUneven = {.forward = 5, .backward_inputs = 7, .backward_weights = 3};

TEST_P(EveryShape, IsSoundAndNeverWaitsForEverAndIdlesAndHoldsAsTheTableSays) {
  for_all([&](const Shape& shape, const Schedule& schedule) {
    ASSERT_EQ(problems_of(schedule), std::vector<std::string>());

    const Simulation run = simulate(schedule, {kUneven});
    const std::int64_t work = GetParam() == Kind::inference ? 5 : 5 + 7 + 3;
    ASSERT_EQ(run.length,
              work * shape.micro_batches * shape.chunks + idle(GetParam(), shape, kUneven));

    const std::vector<int> peaks = peak_activations(schedule);
    for (int stage = 0; stage < shape.stages; ++stage) {
      ASSERT_EQ(peaks[stage], activations(GetParam(), shape, stage)) << "stage " << stage;
    }

    // Throws where stages wait for each other.
    ASSERT_GE(simulate(schedule, {kUneven}, Transport::rendezvous).length, run.length);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryShape,
                         ::testing::Values(Kind::gpipe, Kind::one_f_one_b, Kind::interleaved,
                                           Kind::zb_h1, Kind::deepspeed, Kind::inference),
                         [](const auto& info) {
                           std::string name(to_string(info.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace capstan::pipeline
