#include "capstan/shard/reduce.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {
Reducer::Reducer(const Plan& plan, const ModelGroups& groups, store::Pool& pool,
                 const ReduceSettings& settings, GradSink* sink)
    : plan_(plan),
      groups_(groups),
      pool_(pool),
      settings_(settings),
      sink_(sink),
      grads_(plan.units.size()),
      came_in_backward_(plan.params.size(), 0),
      came_since_clear_(plan.params.size(), 0) {
  for (int unit = static_cast<int>(plan.units.size()) - 1; unit >= 0; --unit) {
    const UnitSpec& spec = plan.units[static_cast<std::size_t>(unit)];
    if (!spec.trainable) continue;
    order_.push_back(unit);
    at(unit).local = std::make_unique<LocalGrads>(spec, plan.params, settings.accum, pool);
  }
}

void Reducer::begin_backward(bool sync) {
  sync_ = sync;
  began_ = true;
  several_graphs_ = false;
  unreduced_ = true;
  next_ = 0;
  std::fill(came_in_backward_.begin(), came_in_backward_.end(), 0);
  for (UnitGrads& grads : grads_) {
    grads.arrived = 0;
    grads.issued = false;
    grads.late = false;
  }
}

void Reducer::arrived(int param, const at::Tensor& grad) {
  const ParamPlace place = plan_.places[static_cast<std::size_t>(param)];
  settle_unit(place.unit);
  UnitGrads& grads = at(place.unit);
  grads.local->put(place.slot, grad);
  grads.late = grads.issued;
  came_since_clear_[static_cast<std::size_t>(param)] = 1;
  char& came = came_in_backward_[static_cast<std::size_t>(param)];
  if (came == 0) ++grads.arrived;  // re-entrant backwards deliver a parameter several times
  came = 1;
  if (sync_ && settings_.schedule == ReduceSchedule::per_backward) issue_ready();
}

void Reducer::issue_ready() {
  for (; next_ < order_.size(); ++next_) {
    const int unit = order_[next_];
    const std::size_t params = plan_.units[static_cast<std::size_t>(unit)].params.size();
    if (at(unit).arrived < static_cast<int>(params)) return;
    issue(unit);
  }
}

void Reducer::end_backward() {
  ++backwards_;
  if (!sync_ || settings_.schedule == ReduceSchedule::at_step) return;
  for (; next_ < order_.size(); ++next_) issue(order_[next_]);
  if (several_graphs_) reduce_late();
}

// What is late on any rank is reduced by all.
void Reducer::reduce_late() {
  const auto units = static_cast<std::int64_t>(grads_.size());
  at::Tensor late = at::zeros({units}, at::kInt);
  for (std::int64_t unit = 0; unit < units; ++unit) {
    if (at(static_cast<int>(unit)).late) late[unit] = 1;
  }
  late = late.to(pool_.device());
  if (groups_.peers.size() > 1) groups_.peers.all_reduce(late, "late gradients").wait();
  late = late.cpu();
  for (const int unit : order_) {
    if (late.const_data_ptr<int>()[unit] != 0) issue(unit);
  }
}

void Reducer::issue(int unit) {
  UnitGrads& grads = at(unit);
  settle_unit(unit);
  grads.issued = true;
  at::Tensor flat = grads.local->complete();
  if (settings_.before_sum != 1.0) flat.mul_(settings_.before_sum);
  if (groups(unit).cut->size() == 1) {
    add_alone(unit);
    hand_over(unit);
    return;
  }
  // One unit travels while the next is filled: more in flight would hold more whole gradient
  // buffers and, on one link, finish no sooner.
  settle(0);
  const UnitSpec& spec = plan_.units[static_cast<std::size_t>(unit)];
  const bool accumulate = grads.sum.defined();
  if (!accumulate) {
    grads.sum = store::new_tensor(pool_, spec.layout.shard_elems(), torch_dtype(settings_.accum),
                                  store::MemoryKind::gradients);
  }
  at::Tensor converted;
  const DType travel = spec.travel.value_or(settings_.travel);
  if (flat.scalar_type() != torch_dtype(travel)) {
    converted =
        store::new_tensor(pool_, flat.numel(), torch_dtype(travel), store::MemoryKind::gradients);
    converted.copy_(flat);
    flat = converted;
    grads.local->drop();
  }
  in_flight_.push_back(
      {.unit = unit,
       .op = groups(unit).cut->reduce_scatter(
           grads.sum, flat,
           {.accumulate = accumulate, .label = spec.name, .blocks_of = settings_.blocks_of}),
       .converted = converted});
  grads.has_sum = true;
  if (!settings_.overlap) settle(0);
}

// The sum over one rank is its gradient: the first one is kept as it is, in its own dtype.
void Reducer::add_alone(int unit) {
  UnitGrads& grads = at(unit);
  if (!grads.sum.defined()) {
    grads.sum = grads.local->take();
    grads.has_sum = true;
    return;
  }
  widen(grads.sum);
  grads.sum.add_(grads.local->flat());
  grads.local->drop();
}

void Reducer::widen(at::Tensor& sum) {
  const at::ScalarType accum = torch_dtype(settings_.accum);
  if (c10::elementSize(sum.scalar_type()) >= c10::elementSize(accum)) return;
  at::Tensor wide = store::new_tensor(pool_, sum.numel(), accum, store::MemoryKind::gradients);
  wide.copy_(sum);
  sum = std::move(wide);
}

void Reducer::hand_over(int unit) {
  if (sink_ == nullptr || !sink_->takes(unit)) return;
  if (groups(unit).tied != nullptr) return;  // other stages are at other micro-batches: at the end
  if (groups(unit).summed == nullptr) {
    sink_->take(unit, std::move(at(unit).sum));
    return;
  }
  start_total(unit).wait();
  sink_->take(unit, std::move(at(unit).sum));
}

comm::PendingOp Reducer::start_total(int unit) {
  widen(at(unit).sum);
  return groups(unit).summed->all_reduce(at(unit).sum,
                                         plan_.units[static_cast<std::size_t>(unit)].name);
}

void Reducer::keep_total(int unit) {
  UnitGrads& grads = at(unit);
  if (grads.total.defined()) grads.sum.add_(grads.total);
  grads.total = std::move(grads.sum);
}

// Once for all micro-batches. One sum travels while the one before it arrives.
void Reducer::sum_over_replicas() {
  int before = -1;
  comm::PendingOp travelling;
  const auto arrive = [&] {
    if (before < 0) return;
    travelling.wait();
    keep_total(before);
  };
  for (const int unit : order_) {
    if (groups(unit).summed == nullptr || groups(unit).tied != nullptr) continue;
    if (!at(unit).sum.defined()) continue;
    comm::PendingOp next = start_total(unit);
    arrive();
    before = unit;
    travelling = std::move(next);
  }
  arrive();
}

// In the order of the ties, which all stages share.
void Reducer::sum_over_stages() {
  for (int tie = 0; tie < std::ssize(plan_.ties); ++tie) {
    for (const int unit : order_) {
      if (plan_.units[static_cast<std::size_t>(unit)].tie == tie) add_up(unit);
    }
  }
}

void Reducer::add_up(int unit) {
  UnitGrads& grads = at(unit);
  if (!grads.sum.defined()) return;
  if (groups(unit).summed != nullptr) start_total(unit).wait();
  widen(grads.sum);
  groups(unit).tied->all_reduce(grads.sum, plan_.units[static_cast<std::size_t>(unit)].name).wait();
  keep_total(unit);
  if (sink_ != nullptr && sink_->takes(unit)) sink_->take(unit, std::move(grads.total));
}

void Reducer::settle(std::size_t at_most) {
  while (in_flight_.size() > at_most) {
    InFlight& oldest = in_flight_.front();
    oldest.op.wait();
    if (!oldest.converted.defined()) at(oldest.unit).local->drop();
    hand_over(oldest.unit);
    in_flight_.pop_front();
  }
}

void Reducer::settle_unit(int unit) {
  while (flying(unit)) settle(in_flight_.size() - 1);
}

bool Reducer::flying(int unit) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [unit](const InFlight& flight) { return flight.unit == unit; });
}

std::vector<c10::Storage> Reducer::memory() {
  settle(0);
  std::vector<c10::Storage> storages;
  for (const UnitGrads& grads : grads_) {
    if (grads.sum.defined()) storages.push_back(grads.sum.storage());
    if (grads.total.defined()) storages.push_back(grads.total.storage());
    if (grads.local != nullptr && !grads.local->empty()) {
      storages.push_back(grads.local->flat().storage());
    }
  }
  return storages;
}

void Reducer::finish() {
  // What was only accumulated locally: everything at the step, or a "no sync" scope. Whether that
  // is so must not depend on what this rank's graph used.
  const bool local_only = settings_.schedule == ReduceSchedule::at_step || !sync_;
  for (const int unit : order_) {
    if (unreduced_ && (local_only || !at(unit).has_sum)) issue(unit);
  }
  unreduced_ = false;
  settle(0);
  sum_over_replicas();
  sum_over_stages();
}

const at::Tensor& Reducer::sum(int unit) const {
  const UnitGrads& grads = grads_[static_cast<std::size_t>(unit)];
  const bool goes_on = groups(unit).summed != nullptr || groups(unit).tied != nullptr;
  return goes_on ? grads.total : grads.sum;
}

std::vector<int> Reducer::unused_params() const {
  std::vector<int> unused;
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    if (plan_.params[i].trainable && came_since_clear_[i] == 0)
      unused.push_back(static_cast<int>(i));
  }
  return unused;
}

void Reducer::clear() {
  settle(0);
  for (UnitGrads& grads : grads_) {
    if (grads.local != nullptr) grads.local->drop();
    grads.sum.reset();
    grads.total.reset();
    grads.has_sum = false;
  }
  std::fill(came_since_clear_.begin(), came_since_clear_.end(), 0);
  unreduced_ = true;
  began_ = false;
  backwards_ = 0;
}

}  // namespace capstan::shard
