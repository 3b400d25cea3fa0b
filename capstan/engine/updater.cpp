#include "capstan/engine/updater.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "capstan/engine/columns.h"
#include "capstan/optim/lamb.h"

namespace capstan::engine {

KernelUpdater::KernelUpdater(const optim::Options& options, const shard::ShardedModel& model,
                             optim::WorkerPool& workers)
    : kind_(options.kind),
      groups_(assign_groups(options, model.plan())),
      run_{workers},
      stretches_(model.plan().units.size()) {
  for (const int unit : model.step_order()) {
    stretches_[static_cast<std::size_t>(unit)] = stretches_of(model, unit);
  }
}

std::vector<KernelUpdater::Stretch> KernelUpdater::stretches_of(const shard::ShardedModel& model,
                                                                int unit) const {
  const shard::UnitSpec& spec = model.plan().units[static_cast<std::size_t>(unit)];
  const layout::ElemRange owned = model.states(unit).owned.range;
  const bool join = kind_ != optim::Kind::lamb;
  std::vector<Stretch> stretches;
  for (int rank = 0; rank < spec.layout.world_size(); ++rank) {
    const layout::ElemRange shard = spec.layout.shard(rank);
    if (layout::intersect(owned, shard).size() == 0) continue;
    const std::int64_t offset = shard.begin - owned.begin;
    for (const layout::SlotPiece& piece : spec.layout.pieces(rank)) {
      const int param = spec.params[static_cast<std::size_t>(piece.slot)];
      const int group = groups_.of_param[static_cast<std::size_t>(param)];
      const layout::ElemRange range{offset + piece.in_shard.begin, offset + piece.in_shard.end};
      if (join && !stretches.empty() && stretches.back().group == group) {
        stretches.back().range.end = range.end;
      } else {
        stretches.push_back({param, group, rank, range});
      }
    }
  }
  return stretches;
}

optim::Span KernelUpdater::span_of(const shard::UnitStates& states, const at::Tensor& grads,
                                   layout::ElemRange range) const {
  optim::Span span{.master = column(states.master, range.begin), .elems = range.size()};
  if (grads.defined()) span.grad = const_column(grads, range.begin);
  for (std::size_t i = 0; i < states.moments.size(); ++i) {
    span.states[i] = column(states.moments[i], range.begin);
  }
  if (!states.master_is_params()) span.param = column(states.params, range.begin);
  return span;
}

optim::StepScalars KernelUpdater::scalars_of(const UpdateScalars& scalars, int group) const {
  return {.lr = scalars.lr[static_cast<std::size_t>(group)],
          .step = scalars.step,
          .grad_factor = scalars.grad_factor,
          .momentum = scalars.momentum};
}

void KernelUpdater::update(shard::ShardedModel& model, const UpdateScalars& scalars) {
  if (kind_ == optim::Kind::lamb) {
    update_lamb(model, scalars);
  } else {
    update_elements(model, scalars);
  }
  model.finish_updates();
}

void KernelUpdater::update_elements(shard::ShardedModel& model, const UpdateScalars& scalars) {
  for (const int unit : model.step_order()) {
    const at::Tensor grads = model.owned_gradient(unit);
    const shard::UnitStates& states = model.states(unit);
    for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
      optim::update(kind_, groups_.hyper[static_cast<std::size_t>(stretch.group)],
                    scalars_of(scalars, stretch.group), span_of(states, grads, stretch.range),
                    run_);
    }
    model.publish(unit);
  }
}

// Sums of each parameter's pieces in rank order: the same bits whether one rank owns all pieces or
// each rank its own.
std::vector<double> KernelUpdater::lamb_slot_sums(shard::ShardedModel& model,
                                                  const UpdateScalars& scalars) {
  const std::size_t count = 2 * model.plan().params.size();
  const bool sharded = model.settings().policy.shards_optimizer();
  std::vector<double> mine(count, 0.0);
  for (const int unit : model.step_order()) {
    const at::Tensor grads = model.owned_gradient(unit);
    for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
      const optim::LambSums sums =
          optim::lamb_prepare(groups_.hyper[static_cast<std::size_t>(stretch.group)],
                              scalars_of(scalars, stretch.group),
                              span_of(model.states(unit), grads, stretch.range), run_);
      mine[2 * static_cast<std::size_t>(stretch.param)] += sums.master_squares;
      mine[2 * static_cast<std::size_t>(stretch.param) + 1] += sums.update_squares;
    }
  }
  if (!sharded || model.group().size() == 1) return mine;
  const auto elems = static_cast<std::int64_t>(count);
  const at::Tensor all = at::empty({elems * model.group().size()}, at::kDouble);
  model.group()
      .all_gather(all, at::from_blob(mine.data(), {elems}, at::kDouble), "slot norms")
      .wait();
  std::vector<double> total(count, 0.0);
  for (int rank = 0; rank < model.group().size(); ++rank) {
    const double* const theirs = all.const_data_ptr<double>() + rank * elems;
    for (std::size_t i = 0; i < count; ++i) total[i] += theirs[i];
  }
  return total;
}

void KernelUpdater::update_lamb(shard::ShardedModel& model, const UpdateScalars& scalars) {
  const std::vector<double> sums = lamb_slot_sums(model, scalars);
  for (const int unit : model.step_order()) {
    for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
      const optim::HyperParams& hyper = groups_.hyper[static_cast<std::size_t>(stretch.group)];
      const auto param = static_cast<std::size_t>(stretch.param);
      const double ratio = optim::lamb_trust_ratio(
          hyper, {.master_squares = sums[2 * param], .update_squares = sums[2 * param + 1]});
      optim::lamb_apply(hyper, scalars_of(scalars, stretch.group), ratio,
                        span_of(model.states(unit), {}, stretch.range), run_);
    }
    model.publish(unit);
  }
}

}  // namespace capstan::engine
