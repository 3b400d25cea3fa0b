#include "capstan/engine/updater.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include "capstan/engine/columns.h"
#include "capstan/engine/grad_gate.h"
#include "capstan/profile/event_clock.h"
#include "capstan/store/tensor.h"

namespace capstan::engine {

namespace {

// Units in the order of their next use; beside each that the CPU must update, the link carries one
// of a later place that is made already.
std::vector<int> in_order_of_use(const std::vector<int>& units, const std::vector<bool>& made) {
  std::vector<int> order;
  order.reserve(units.size());
  std::size_t ahead = 0;  // all of `made` before this place are in the order
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (made[i] && i < ahead) continue;
    order.push_back(units[i]);
    ahead = std::max(ahead, i + 1);
    if (made[i]) continue;
    while (ahead < units.size() && !made[ahead]) ++ahead;
    if (ahead < units.size()) order.push_back(units[ahead++]);
  }
  return order;
}

store::Spans columns_of(const shard::UnitStates& states, layout::ElemRange range) {
  store::Spans spans = {store::span_of(states.master, range.begin, range.size())};
  for (const at::Tensor& moment : states.moments) {
    spans.push_back(store::span_of(moment, range.begin, range.size()));
  }
  return spans;
}

}  // namespace

KernelUpdater::KernelUpdater(const optim::Options& options, const shard::ShardedModel& model,
                             optim::WorkerPool& workers)
    : device_(model.device()),
      kind_(options.kind),
      groups_(assign_groups(options, model.plan())),
      run_{workers},
      stretches_(model.plan().units.size()) {
  for (const int unit : model.step_order()) {
    stretches_[static_cast<std::size_t>(unit)] = stretches_of(model, unit);
    any_on_host_ = any_on_host_ || model.states(unit).on_host;
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
  return span;
}

optim::StepScalars KernelUpdater::scalars_of(const UpdateScalars& scalars, int group) const {
  return {.lr = scalars.lr[static_cast<std::size_t>(group)],
          .step = scalars.step,
          .grad_factor = scalars.grad_factor,
          .momentum = scalars.momentum};
}

std::vector<StateColumn> KernelUpdater::state_columns(shard::ShardedModel& model) {
  const std::vector<std::string>& names = model.settings().states.moment_names;
  std::vector<StateColumn> columns;
  for (std::size_t i = 0; i < names.size(); ++i) {
    StateColumn& column = columns.emplace_back(StateColumn{names[i], {}});
    for (const int unit : model.step_order()) {
      const shard::UnitStates& states = model.states(unit);
      for (const layout::SlotPiece& piece : states.owned.pieces) {
        const layout::ElemRange range = piece.in_shard;
        column.parts.push_back(
            {unit, piece, states.moments[i].narrow(0, range.begin, range.size())});
      }
    }
  }
  return columns;
}

// Of the default group, for those who read a checkpoint; a load takes them from its own options.
std::map<std::string, double> KernelUpdater::state_scalars() const {
  return numbers(groups_.hyper.front());
}

void KernelUpdater::update(shard::ShardedModel& model, const UpdateScalars& scalars) {
  if (kind_ == optim::Kind::lamb) {
    update_lamb(model, scalars);
  } else {
    update_elements(model, scalars);
  }
  model.updates().finish();
}

void KernelUpdater::run_stretches(const shard::ShardedModel& model, int unit,
                                  const at::Tensor& grads, const Target& target,
                                  const Kernel& kernel) {
  const shard::UnitStates& states = model.states(unit);
  const auto columns = static_cast<std::int64_t>(1 + states.moments.size());
  const profile::Span timed(
      model.group().recorder().get(),
      {.name = "update",
       .unit = model.plan().units[static_cast<std::size_t>(unit)].name,
       .kind = profile::Kind::update,
       .bytes = target.range.size() * columns * static_cast<std::int64_t>(states.master.itemsize()),
       .device = profile::index_of(states.master.device())});
  for (const Stretch& stretch : stretches_[static_cast<std::size_t>(unit)]) {
    const layout::ElemRange range = layout::intersect(stretch.range, target.range);
    if (range.size() == 0) continue;
    optim::Span span = span_of(states, grads, range);
    if (target.values.defined()) {
      span.param = column(target.values, range.begin - target.range.begin);
    }
    if (!target.columns.empty()) {
      const std::int64_t from = range.begin - target.range.begin;
      span.master.data = target.columns[0] + from * size_bytes(span.master.dtype);
      for (std::size_t i = 0; i + 1 < target.columns.size(); ++i) {
        span.states[i].data = target.columns[i + 1] + from * size_bytes(span.states[i].dtype);
      }
    }
    if (target.fresh != nullptr) {
      span.fresh_master = column(target.fresh->master, range.begin);
      for (std::size_t i = 0; i < target.fresh->moments.size(); ++i) {
        span.fresh_states[i] = column(target.fresh->moments[i], range.begin);
      }
    }
    kernel(stretch, span);
  }
}

void KernelUpdater::write_params(shard::ShardedModel& model, int unit, const at::Tensor& grads,
                                 const Kernel& kernel) {
  const shard::UnitStates& states = model.states(unit);
  const std::int64_t elems = states.owned.range.size();
  shard::Updates& updates = model.updates();
  const bool sends = updates.sends_values(unit);
  const bool here = states.params.device() == states.master.device() && !sends;
  if (here && updates.states_home(unit).in_place()) {
    const at::Tensor values = states.master_is_params() ? at::Tensor() : states.params;
    return run_stretches(model, unit, grads, {{0, elems}, values}, kernel);
  }
  if (!states.on_host) {
    const at::Tensor values =
        at::empty({elems}, states.params.options().device(states.master.device()));
    run_stretches(model, unit, grads, {{0, elems}, values}, kernel);
    return updates.fetch_values(unit, values);
  }
  // A piece travels to the device while the next is computed.
  store::Home& home = updates.states_home(unit);
  const bool same_dtype = states.master.scalar_type() == states.params.scalar_type();
  for (const layout::ElemRange& range : pieces_of(model, unit)) {
    at::Tensor values;
    if (!sends) {
      values = states.params.narrow(0, range.begin, range.size());
    } else if (!home.in_place() || !same_dtype) {
      values = updates.new_values(unit, range.size());
    }
    const store::Taken taken = home.take(columns_of(states, range));
    {
      RECORD_USER_SCOPE("capstan::host_update");  // for torch's profiler
      run_stretches(model, unit, grads, {range, values, nullptr, taken.at}, kernel);
    }
    if (!sends) continue;
    if (!values.defined()) values = states.master.narrow(0, range.begin, range.size());
    updates.send_values(unit, range.begin, std::move(values));
  }
}

std::vector<layout::ElemRange> KernelUpdater::pieces_of(const shard::ShardedModel& model,
                                                        int unit) {
  const std::int64_t elems = model.states(unit).owned.range.size();
  const std::int64_t piece = model.settings().host.piece_elems;
  std::vector<layout::ElemRange> pieces;
  for (std::int64_t begin = 0; begin < elems; begin += piece) {
    pieces.push_back({begin, std::min(elems, begin + piece)});
  }
  return pieces;
}

// What is not in memory is read ahead of its update and written behind it.
void KernelUpdater::expect_update(shard::ShardedModel& model) {
  const Order order = order_of(model);
  std::vector<int> units = order.now;
  units.insert(units.end(), order.later.begin(), order.later.end());
  std::vector<store::Spans> next;
  store::Home* home = nullptr;
  for (const int unit : units) {
    if (!model.states(unit).on_host) continue;
    home = &model.updates().states_home(unit);
    if (home->in_place()) return;
    for (const layout::ElemRange& range : pieces_of(model, unit)) {
      next.push_back(columns_of(model.states(unit), range));
    }
  }
  if (home != nullptr) home->ahead(std::move(next));
}

void KernelUpdater::update_unit(shard::ShardedModel& model, int unit,
                                const UpdateScalars& scalars) {
  if (model.updates().keep_early(unit)) return;
  const at::Tensor grads = model.gradients().owned(unit);
  const bool on_gpu = model.states(unit).master.is_cuda();
  const auto kernel = [&](const Stretch& stretch, const optim::Span& span) {
    const optim::StepScalars mine = scalars_of(scalars, stretch.group);
    if (on_gpu) {
      optim::update(kind_, hyper_of(stretch), mine, span,
                    optim::CudaRun{current_stream(device_), scalars.gate});
    } else {
      optim::update(kind_, hyper_of(stretch), mine, span, run_);
    }
  };
  write_params(model, unit, grads, kernel);
}

void KernelUpdater::update_early(shard::ShardedModel& model, int unit, const UpdateScalars& scalars,
                                 shard::FreshStates& fresh, const shard::UpdateQueue::GoOn& go_on) {
  const at::Tensor& grads = model.gradients().shard(unit);
  const auto kernel = [&](const Stretch& stretch, const optim::Span& span) {
    optim::update(kind_, hyper_of(stretch), scalars_of(scalars, stretch.group), span, run_);
  };
  for (const layout::ElemRange& range : pieces_of(model, unit)) {
    if (!go_on()) return;
    const at::Tensor values =
        fresh.values.defined() ? fresh.values.narrow(0, range.begin, range.size()) : at::Tensor();
    run_stretches(model, unit, grads, {range, values, &fresh}, kernel);
  }
}

KernelUpdater::Order KernelUpdater::order_of(const shard::ShardedModel& model) {
  std::vector<int> now;
  std::vector<int> later;
  std::vector<bool> made;  // already, in backward: they only travel
  for (const int unit : model.step_order()) {
    if (model.updates().can_be_late(unit)) {
      later.push_back(unit);
      made.push_back(model.updates().made_early(unit));
    } else {
      now.push_back(unit);
    }
  }
  return {std::move(now), in_order_of_use(later, made)};
}

void KernelUpdater::update_elements(shard::ShardedModel& model, const UpdateScalars& scalars) {
  std::vector<int> later = order_of(model).later;
  store::Home& home = model.places().states(model.settings().host.homes.optimizer.where());
  for (const int unit : model.step_order()) {
    if (!model.updates().can_be_late(unit)) update_unit(model, unit, scalars);
    model.updates().publish(unit);
  }
  if (later.empty()) {
    home.behind();
    return;
  }
  const int last = later.back();
  model.updates().start_late(std::move(later), [this, &model, &home, scalars, last](int unit) {
    update_unit(model, unit, scalars);
    if (unit == last) home.behind();
  });
}

std::vector<optim::LambSums> KernelUpdater::prepare_lamb(shard::ShardedModel& model, int unit,
                                                         const UpdateScalars& scalars) {
  if (model.states(unit).master.is_cuda()) return prepare_lamb_on_device(model, unit, scalars);
  const at::Tensor grads = model.gradients().owned(unit);
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
  const at::Tensor grads = model.gradients().owned(unit);
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
    const comm::Group* const replicas = model.groups(unit).summed;
    if (sharded && replicas != nullptr && replicas->rank() != 0) continue;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto param =
          static_cast<std::size_t>(stretches_[static_cast<std::size_t>(unit)][i].param);
      mine[2 * param] += sums[i].master_squares;
      mine[2 * param + 1] += sums[i].update_squares;
    }
  }
  if (!sharded || model.peers().size() == 1) return mine;
  const auto elems = static_cast<std::int64_t>(count);
  const at::Tensor sent = at::from_blob(mine.data(), {elems}, at::kDouble).to(device_);
  at::Tensor all = at::empty({elems * model.peers().size()}, sent.options());
  model.peers().all_gather(all, sent, "slot norms").wait();
  all = all.cpu();
  std::vector<double> total(count, 0.0);
  for (int rank = 0; rank < model.peers().size(); ++rank) {
    const double* const theirs = all.const_data_ptr<double>() + rank * elems;
    for (std::size_t i = 0; i < count; ++i) total[i] += theirs[i];
  }
  return total;
}

void KernelUpdater::update_lamb(shard::ShardedModel& model, const UpdateScalars& scalars) {
  const std::vector<double> sums = lamb_slot_sums(model, scalars);
  for (const int unit : model.step_order()) {
    const bool on_gpu = model.states(unit).master.is_cuda();
    const auto kernel = [&](const Stretch& stretch, const optim::Span& span) {
      const optim::HyperParams& hyper = hyper_of(stretch);
      const auto param = static_cast<std::size_t>(stretch.param);
      const double ratio = optim::lamb_trust_ratio(
          hyper, {.master_squares = sums[2 * param], .update_squares = sums[2 * param + 1]});
      const optim::StepScalars mine = scalars_of(scalars, stretch.group);
      if (on_gpu) {
        optim::lamb_apply(hyper, mine, ratio, span, optim::CudaRun{current_stream(device_)});
      } else {
        optim::lamb_apply(hyper, mine, ratio, span, run_);
      }
    };
    write_params(model, unit, {}, kernel);
    model.updates().publish(unit);
  }
}

}  // namespace capstan::engine
