// The global L2 norm of the gradients and the search for what is not finite: one pass over the
// gradient shards and one small gather, with the same bits on every rank and at every stage.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/optim/update.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// A parameter and its stage as one number: of several, the least is the first parameter of the
// first stage.
struct ParamCode {
  static constexpr std::int32_t kPerStage = 1 << 20;
  static std::int32_t of(int stage, int param) { return stage * kPerStage + param; }
};

struct GradNorm {
  double sum_norm = 0;            // of the summed gradients as they are: not averaged or unscaled
  std::optional<int> non_finite;  // the first parameter with an inf or NaN, in the plan's order
  std::optional<int> bad_stage;   // instead: another stage of the pipeline that has the first

  bool finite() const { return !non_finite.has_value() && !bad_stage.has_value(); }
  void set_bad(std::int32_t code, int own_stage);
};

// Collective over all ranks, after finish_gradients(). Each rank adds fp64 sums of squares per slot
// piece of its own shard; the ranks' sums are added in rank order.
GradNorm measure_gradients(shard::ShardedModel& model, const optim::CpuRun& run);

}  // namespace capstan::engine
