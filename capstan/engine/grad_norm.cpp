#include "capstan/engine/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/empty.h>

#include "capstan/engine/columns.h"
#include "capstan/optim/column_ops.h"

namespace capstan::engine {
namespace {

constexpr double kNone = -1;  // no parameter is bad

struct LocalSums {
  double squares = 0;
  double first_bad = kNone;
};

LocalSums sum_own_shards(shard::ShardedModel& model, const optim::CpuRun& run) {
  LocalSums sums;
  const shard::Plan& plan = model.plan();
  const int stage = model.mesh().place(layout::Axis::pipe);
  for (const int unit : model.step_order()) {
    const shard::UnitSpec& spec = plan.units[static_cast<std::size_t>(unit)];
    const at::Tensor& grads = model.gradients().shard(unit);
    for (const layout::SlotPiece& piece : counted_pieces(plan, unit, model.groups(unit))) {
      const double squares =
          optim::sum_squares(const_column(grads, piece.in_shard.begin), piece.in_shard.size(), run);
      sums.squares += squares;
      if (std::isfinite(squares)) continue;
      const double param = ParamCode::of(stage, spec.params[static_cast<std::size_t>(piece.slot)]);
      if (sums.first_bad == kNone || param < sums.first_bad) sums.first_bad = param;
    }
  }
  return sums;
}

// What every rank of the group hands in, by rank.
std::vector<LocalSums> from_all(comm::Group& group, const LocalSums& mine) {
  const at::Tensor sent = at::empty({2}, at::kDouble);
  sent.mutable_data_ptr<double>()[0] = mine.squares;
  sent.mutable_data_ptr<double>()[1] = mine.first_bad;
  const at::Tensor all = at::empty({std::int64_t{2} * group.size()}, at::kDouble);
  group.all_gather(all, sent, "gradient norm").wait();
  std::vector<LocalSums> sums;
  for (int rank = 0; rank < group.size(); ++rank) {
    const double* const theirs = all.const_data_ptr<double>() + std::ptrdiff_t{2} * rank;
    sums.push_back({.squares = theirs[0], .first_bad = theirs[1]});
  }
  return sums;
}

}  // namespace

void GradNorm::set_bad(std::int32_t code, int own_stage) {
  const int stage = code / ParamCode::kPerStage;
  if (stage == own_stage) {
    non_finite = code % ParamCode::kPerStage;
  } else {
    bad_stage = stage;
  }
}

GradNorm measure_gradients(shard::ShardedModel& model, const optim::CpuRun& run) {
  GradNorm result;
  double squares = 0;
  double first_bad = kNone;
  for (const LocalSums& theirs : from_all(model.group(), sum_own_shards(model, run))) {
    squares += theirs.squares;
    if (theirs.first_bad == kNone) continue;
    first_bad = first_bad == kNone ? theirs.first_bad : std::min(first_bad, theirs.first_bad);
  }
  result.sum_norm = std::sqrt(squares);
  if (first_bad != kNone) {
    result.set_bad(static_cast<std::int32_t>(first_bad), model.mesh().place(layout::Axis::pipe));
  }
  return result;
}

}  // namespace capstan::engine
