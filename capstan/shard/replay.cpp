#include "capstan/shard/replay.h"

#include <algorithm>

namespace capstan::shard {
namespace {

using store::MemoryKind;
using store::Placement;

constexpr double kMaxWaste = 0.125;  // of a block, as in store/pool.cpp

}  // namespace

Replay::Replay(const Plan& plan, const Settings& settings, const ReplayOptions& options)
    : plan_(plan), settings_(settings), options_(options) {
  alone_ = plan.units.empty() || plan.units.front().layout.world_size() == 1;
  const std::vector<UnitHomes> homes = choose_homes(plan, settings.policy, settings.host.homes);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& spec = plan.units[i];
    State unit{.bytes = bytes_of(spec, settings), .homes = homes[i]};
    unit.members = static_cast<int>(spec.params.size());
    unit.keeps_whole = !unit.bytes.released;
    const bool elsewhere = unit.homes.params != Placement::device;
    unit.gathered = elsewhere ? spec.whole_bytes() : unit.bytes.whole;
    weights_.push_back(unit.bytes.released ? spec.whole_bytes() : 0);
    now_[MemoryKind::parameters] += unit.bytes.near + (elsewhere ? 0 : unit.bytes.shard);
    if (unit.homes.states == Placement::device) {
      now_[MemoryKind::optimizer] += unit.bytes.states;
    }
    if (spec.trainable) order_.insert(order_.begin(), static_cast<int>(i));
    units_.push_back(unit);
  }
  for (std::size_t i = units_.size(); i-- > 0;) {  // each was whole when it was adopted
    if (units_[i].keeps_whole) continue;
    take(MemoryKind::parameters, units_[i].gathered);
    give(MemoryKind::parameters, units_[i].gathered);
  }
  reset_peak();
}

void Replay::see_peak() {
  if (total() + beside_ <= peak_.total) return;
  peak_ = {total() + beside_, now_, workspace(), beside_};
}

void Replay::reset_peak() {
  peak_ = {};
  see_peak();
}

void Replay::beside(std::int64_t bytes) {
  beside_ = bytes;
  see_peak();
}

// As Pool::take().
void Replay::take(MemoryKind kind, std::int64_t bytes) {
  if (bytes == 0) return;
  now_[kind] += bytes;
  if (options_.keeps_blocks) {
    const auto found = idle_.lower_bound(bytes);
    const bool fits = found != idle_.end() && static_cast<double>(found->first - bytes) <=
                                                  kMaxWaste * static_cast<double>(found->first);
    std::int64_t capacity = bytes;
    if (fits) {
      capacity = found->first;
      idle_bytes_ -= capacity;
      idle_.erase(found);
    }
    idle_bytes_ += capacity - bytes;  // what a larger block wastes
    out_.emplace(bytes, capacity);
  }
  see_peak();
}

void Replay::give(MemoryKind kind, std::int64_t bytes) {
  if (bytes == 0) return;
  now_[kind] -= bytes;
  if (!options_.keeps_blocks) return;
  const auto block = out_.find(bytes);
  const std::int64_t capacity = block == out_.end() ? bytes : block->second;
  if (block != out_.end()) out_.erase(block);
  idle_.emplace(capacity, true);
  idle_bytes_ += bytes;
}

void Replay::gather(int unit) {
  State& target = at(unit);
  target.whole = true;
  live_bytes_ += weights_[static_cast<std::size_t>(unit)];
  take(MemoryKind::parameters, target.gathered);
}

void Replay::release(int unit) {
  State& target = at(unit);
  if (!target.whole) return;
  if (target.unused) unused_bytes_ -= weights_[static_cast<std::size_t>(unit)];
  target.whole = target.unused = false;
  live_bytes_ -= weights_[static_cast<std::size_t>(unit)];
  give(MemoryKind::parameters, target.gathered);
}

void Replay::make_room(std::int64_t bytes) {
  while (live_bytes_ + bytes > settings_.limits.max_live_bytes) {
    int victim = -1;
    std::int64_t farthest = -1;
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      if (at(unit).keeps_whole || !at(unit).whole || at(unit).pins > 0) continue;
      const std::int64_t distance = trace_.distance(unit, weights_).value_or(INT64_MAX);
      if (distance > farthest) {
        farthest = distance;
        victim = unit;
      }
    }
    if (victim < 0) return;
    release(victim);
  }
}

void Replay::prefetch() {
  for (const int unit : trace_.upcoming()) {
    if (at(unit).whole) continue;
    const std::int64_t bytes = weights_[static_cast<std::size_t>(unit)];
    if (unused_bytes_ + bytes > settings_.limits.prefetch_bytes) return;
    if (live_bytes_ + bytes > settings_.limits.max_live_bytes) return;
    gather(unit);
    at(unit).unused = true;
    unused_bytes_ += bytes;
  }
}

void Replay::begin_use(int boundary) {
  const std::vector<int>& needed = plan_.boundary_units[static_cast<std::size_t>(boundary)];
  for (const int unit : needed) at(unit).pins += at(unit).keeps_whole ? 0 : 1;
  for (const int unit : needed) {
    if (at(unit).keeps_whole) continue;
    trace_.use(unit);
    if (at(unit).whole) continue;
    make_room(weights_[static_cast<std::size_t>(unit)]);
    gather(unit);
  }
  for (const int unit : needed) {
    if (at(unit).unused) unused_bytes_ -= weights_[static_cast<std::size_t>(unit)];
    at(unit).unused = false;
  }
  prefetch();
}

void Replay::unpin(int unit) {
  if (--at(unit).pins > 0) return;
  const auto distance = trace_.distance(unit, weights_);
  const bool soon = distance.has_value() && *distance < settings_.limits.max_reuse_bytes &&
                    live_bytes_ <= settings_.limits.max_live_bytes;
  if (!soon) release(unit);
}

void Replay::end_use(int boundary) {
  for (const int unit : plan_.boundary_units[static_cast<std::size_t>(boundary)]) {
    if (!at(unit).keeps_whole) unpin(unit);
  }
}

void Replay::begin_backward() {
  next_ = 0;
  for (State& unit : units_) {
    unit.arrived = 0;
    unit.issued = false;
  }
}

// As LocalGrads::put().
void Replay::put(int index) {
  State& unit = at(index);
  if (unit.local == 0) {
    unit.local = unit.bytes.local;
    unit.filled = 0;
    take(MemoryKind::gradients, unit.local);
  } else if (unit.filled >= unit.members && unit.local < unit.bytes.wide) {
    take(MemoryKind::gradients, unit.bytes.wide);
    give(MemoryKind::gradients, unit.local);
    unit.local = unit.bytes.wide;
  }
  ++unit.filled;
}

void Replay::drop_local(int unit) {
  give(MemoryKind::gradients, at(unit).local);
  at(unit).local = at(unit).filled = 0;
}

void Replay::gradient(int param) {
  const int unit = plan_.places[static_cast<std::size_t>(param)].unit;
  if (flight_.unit == unit) settle();
  put(unit);
  ++at(unit).arrived;
  if (settings_.reduce.schedule == ReduceSchedule::per_backward) issue_ready();
}

void Replay::issue_ready() {
  for (; next_ < order_.size(); ++next_) {
    const State& unit = at(order_[next_]);
    if (unit.arrived < unit.members) return;
    issue(order_[next_]);
  }
}

void Replay::add_alone(State& unit) {
  if (!unit.has_sum || unit.sum == 0) {
    unit.sum = unit.local;
    unit.local = unit.filled = 0;
  } else {
    if (unit.sum < unit.bytes.wide) {
      take(MemoryKind::gradients, unit.bytes.wide);
      give(MemoryKind::gradients, unit.sum);
      unit.sum = unit.bytes.wide;
    }
    give(MemoryKind::gradients, unit.local);
    unit.local = unit.filled = 0;
  }
  unit.has_sum = true;
}

void Replay::issue(int index) {
  State& unit = at(index);
  if (flight_.unit == index) settle();
  unit.issued = true;
  if (unit.local == 0) put(index);
  if (alone_) {
    add_alone(unit);
    hand_over(index);
    return;
  }
  settle();
  if (unit.sum == 0) {
    unit.sum = unit.bytes.sum;
    take(MemoryKind::gradients, unit.sum);
  }
  unit.has_sum = true;
  const UnitSpec& spec = plan_.units[static_cast<std::size_t>(index)];
  const std::int64_t travel =
      spec.layout.padded_elems() * size_bytes(spec.travel.value_or(settings_.reduce.travel));
  flight_ = {.unit = index};
  if (travel != unit.local) {
    flight_.converted = travel;
    take(MemoryKind::gradients, travel);
    drop_local(index);
  }
  if (options_.receives && received_.emplace(travel, true).second) {
    received_bytes_ += travel;
    see_peak();
  }
  if (!settings_.reduce.overlap) settle();
}

void Replay::settle() {
  if (flight_.unit < 0) return;
  const Flight done = flight_;
  flight_ = {};
  if (done.converted > 0) {
    give(MemoryKind::gradients, done.converted);
  } else {
    drop_local(done.unit);
  }
  hand_over(done.unit);
}

// A sum that lives on the host leaves the device.
void Replay::hand_over(int unit) {
  if (at(unit).homes.gradients() == Placement::device) return;
  give(MemoryKind::gradients, at(unit).sum);
  at(unit).sum = 0;
}

void Replay::end_backward() {
  if (settings_.reduce.schedule == ReduceSchedule::per_backward) {
    for (; next_ < order_.size(); ++next_) issue(order_[next_]);
  }
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    if (at(unit).keeps_whole) continue;
    at(unit).pins = 0;
    release(unit);
  }
  trace_.end_pass();
}

void Replay::finish_gradients() {
  for (const int unit : order_) {
    if (settings_.reduce.schedule == ReduceSchedule::at_step || !at(unit).has_sum) issue(unit);
  }
  settle();
}

void Replay::step() {
  for (const int unit : order_) {
    const std::int64_t whole =
        at(unit).homes.states == Placement::device ? at(unit).bytes.whole_sum : 0;
    take(MemoryKind::gradients, whole);
    give(MemoryKind::gradients, whole);
  }
  for (State& unit : units_) {
    give(MemoryKind::gradients, unit.local);
    give(MemoryKind::gradients, unit.sum);
    unit.local = unit.filled = unit.sum = 0;
    unit.has_sum = false;
  }
}

}  // namespace capstan::shard
