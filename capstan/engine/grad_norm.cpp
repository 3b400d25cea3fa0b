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
  for (const int unit : model.step_order()) {
    const shard::UnitSpec& spec = plan.units[static_cast<std::size_t>(unit)];
    const at::Tensor& grads = model.gradients().shard(unit);
    if (!model.groups(unit).counted) continue;
    for (const layout::SlotPiece& piece : spec.layout.pieces(model.groups(unit).cut->rank())) {
      const double squares =
          optim::sum_squares(const_column(grads, piece.in_shard.begin), piece.in_shard.size(), run);
      sums.squares += squares;
      if (std::isfinite(squares)) continue;
      const double param = spec.params[static_cast<std::size_t>(piece.slot)];
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

GradNorm measure_gradients(shard::ShardedModel& model, const optim::CpuRun& run) {
  GradNorm result;
  double squares = 0;
  for (const LocalSums& theirs : from_all(model.group(), sum_own_shards(model, run))) {
    squares += theirs.squares;
    if (theirs.first_bad == kNone) continue;
    const int bad = static_cast<int>(theirs.first_bad);
    result.non_finite = std::min(result.non_finite.value_or(bad), bad);
  }
  result.sum_norm = std::sqrt(squares);
  return result;
}

GradNorm over_stages(const GradNorm& own, comm::Group& pipe) {
  const LocalSums mine = {.squares = own.sum_norm * own.sum_norm,
                          .first_bad = own.finite() ? kNone : 0};
  GradNorm result = {.non_finite = own.non_finite};
  double total = 0;
  for (int stage = 0; const LocalSums& theirs : from_all(pipe, mine)) {
    total += theirs.squares;
    if (theirs.first_bad != kNone && !result.bad_stage) result.bad_stage = stage;
    ++stage;
  }
  result.sum_norm = std::sqrt(total);
  return result;
}

}  // namespace capstan::engine
