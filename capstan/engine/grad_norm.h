// The global L2 norm of the gradients and the search for what is not finite: one pass over the
// gradient shards and one small gather, with the same bits on every rank and at every stage.
#pragma once

#include <optional>

#include "capstan/optim/update.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

struct GradNorm {
  double sum_norm = 0;            // of the summed gradients as they are: not averaged or unscaled
  std::optional<int> non_finite;  // the first parameter with an inf or NaN, in the plan's order
  std::optional<int> bad_stage;   // of a pipeline, the first that has such a parameter

  bool finite() const { return !non_finite.has_value() && !bad_stage.has_value(); }
};

// Collective, after finish_gradients(). Each rank adds fp64 sums of squares per slot piece of its
// own shard; the ranks' sums are added in rank order.
GradNorm measure_gradients(shard::ShardedModel& model, const optim::CpuRun& run);
// Of all stages, whose squares are added in their order; each has measured its own. Collective.
GradNorm over_stages(const GradNorm& own, comm::Group& pipe);

}  // namespace capstan::engine
