#include "capstan/engine/updater.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "capstan/engine/columns.h"
#include "capstan/engine/grad_gate.h"

namespace capstan::engine {

KernelUpdater::KernelUpdater(const optim::Options& options, const shard::ShardedModel& model,
                             optim::WorkerPool& workers)
    : device_(model.device()),
      kind_(options.kind),
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
    for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
      const optim::Span span = span_of(model.states(unit), grads, stretch.range);
      const optim::StepScalars mine = scalars_of(scalars, stretch.group);
      if (device_.is_cuda()) {
        optim::update(kind_, hyper_of(stretch), mine, span,
                      optim::CudaRun{current_stream(device_), scalars.gate});
      } else {
        optim::update(kind_, hyper_of(stretch), mine, span, run_);
      }
    }
    model.publish(unit);
  }
}

std::vector<optim::LambSums> KernelUpdater::prepare_lamb(shard::ShardedModel& model, int unit,
                                                         const UpdateScalars& scalars) {
  if (device_.is_cuda()) return prepare_lamb_on_device(model, unit, scalars);
  const at::Tensor grads = model.owned_gradient(unit);
  std::vector<optim::LambSums> sums;
  for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
    sums.push_back(optim::lamb_prepare(hyper_of(stretch), scalars_of(scalars, stretch.group),
                                       span_of(model.states(unit), grads, stretch.range), run_));
  }
  return sums;
}

std::vector<optim::LambSums> KernelUpdater::prepare_lamb_on_device(shard::ShardedModel& model,
                                                                   int unit,
                                                                   const UpdateScalars& scalars) {
  const at::Tensor grads = model.owned_gradient(unit);
  const std::vector<Stretch>& stretches = stretches_[static_cast<std::size_t>(unit)];
  const auto count = static_cast<std::int64_t>(stretches.size());
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  const at::Tensor sums = at::empty({count, 2}, options);
  // One scratch for all: on one stream they take turns.
  const std::int64_t elems = model.states(unit).owned.range.size();
  const at::Tensor blocks = at::empty({2 * optim::sum_block_count(elems)}, options);
  auto* next = sums.mutable_data_ptr<double>();
  for (const Stretch& stretch : stretches) {
    optim::lamb_prepare(hyper_of(stretch), scalars_of(scalars, stretch.group),
                        span_of(model.states(unit), grads, stretch.range),
                        blocks.mutable_data_ptr<double>(), next,
                        optim::CudaRun{current_stream(device_)});
    next += 2;
  }
  const at::Tensor host = sums.cpu();
  std::vector<optim::LambSums> result;
  for (std::int64_t i = 0; i < count; ++i) {
    const double* const pair = host.const_data_ptr<double>() + 2 * i;
    result.push_back({.master_squares = pair[0], .update_squares = pair[1]});
  }
  return result;
}

// Sums of each parameter's pieces in rank order: the same bits whether one rank owns all pieces or
// each rank its own.
std::vector<double> KernelUpdater::lamb_slot_sums(shard::ShardedModel& model,
                                                  const UpdateScalars& scalars) {
  const std::size_t count = 2 * model.plan().params.size();
  const bool sharded = model.settings().policy.shards_optimizer();
  std::vector<double> mine(count, 0.0);
  for (const int unit : model.step_order()) {
    const std::vector<optim::LambSums> sums = prepare_lamb(model, unit, scalars);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto param =
          static_cast<std::size_t>(stretches_[static_cast<std::size_t>(unit)][i].param);
      mine[2 * param] += sums[i].master_squares;
      mine[2 * param + 1] += sums[i].update_squares;
    }
  }
  if (!sharded || model.group().size() == 1) return mine;
  const auto elems = static_cast<std::int64_t>(count);
  const at::Tensor sent = at::from_blob(mine.data(), {elems}, at::kDouble).to(device_);
  at::Tensor all = at::empty({elems * model.group().size()}, sent.options());
  model.group().all_gather(all, sent, "slot norms").wait();
  all = all.cpu();
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
      const optim::HyperParams& hyper = hyper_of(stretch);
      const auto param = static_cast<std::size_t>(stretch.param);
      const double ratio = optim::lamb_trust_ratio(
          hyper, {.master_squares = sums[2 * param], .update_squares = sums[2 * param + 1]});
      const optim::Span span = span_of(model.states(unit), {}, stretch.range);
      const optim::StepScalars mine = scalars_of(scalars, stretch.group);
      if (device_.is_cuda()) {
        optim::lamb_apply(hyper, mine, ratio, span, optim::CudaRun{current_stream(device_)});
      } else {
        optim::lamb_apply(hyper, mine, ratio, span, run_);
      }
    }
    model.publish(unit);
  }
}

}  // namespace capstan::engine
