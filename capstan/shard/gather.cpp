#include "capstan/shard/gather.h"

#include <utility>

#include <c10/core/StreamGuard.h>

#include "capstan/shard/updates.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {

Gatherer::Gatherer(std::span<Unit> units, std::span<const UnitGroups> groups,
                   const GatherLimits& limits, ShardSource source)
    : units_(units), groups_(groups), limits_(limits), source_(source), slots_(units.size()) {
  for (const Unit& unit : units) {
    const bool released = !unit.keeps_whole();
    bytes_.push_back(released ? unit.spec().whole_bytes() : 0);
    if (released && unit.state() != UnitState::sharded) live_bytes_ += bytes_.back();
  }
}

void Gatherer::await(int unit) {
  if (source_.updates != nullptr) source_.updates->await(unit);
}

void Gatherer::start(int unit) {
  Unit& target = at(unit);
  await(unit);
  const bool near = target.near_is_fresh();
  // First of all: a disk may fail, and the unit is then as it was.
  const at::Tensor values = target.shard_on_host() && !near ? on_host(unit) : at::Tensor();
  target.start_gather();
  live_bytes_ += bytes_[static_cast<std::size_t>(unit)];
  const std::string& name = target.spec().name;
  if (near) {
    slot(unit).gather = groups(unit).near->all_gather(target.flat(), target.near(), name);
  } else if (values.defined()) {
    start_from_host(unit, values);
  } else if (!target.gather_is_free()) {
    slot(unit).gather = groups(unit).cut->all_gather(target.flat(), target.shard(), name);
  }
}

// Our part goes to its place in the flat buffer, and from there to the others: from the stream that
// brought it, so that neither waits for the computation.
void Gatherer::start_from_host(int unit, const at::Tensor& values) {
  Unit& target = at(unit);
  const at::Tensor part = target.own_part();
  slot(unit).from_host = source_.traffic->send_ahead(part, values, target.spec().name);
  if (groups(unit).cut->size() == 1) return;
  const c10::OptionalStreamGuard behind_the_copy(source_.traffic->to_device());
  slot(unit).gather = groups(unit).cut->all_gather(target.flat(), part, target.spec().name);
}

at::Tensor Gatherer::on_host(int unit) {
  const at::Tensor& shard = at(unit).shard();
  if (source_.home->in_place()) return shard;
  return store::tensor_over(source_.home->take({store::span_of(shard)}).memory, shard.numel(),
                            shard.options());
}

// What prefetch() does not reach comes nearer at least.
void Gatherer::read_ahead() {
  if (source_.home == nullptr || source_.home->in_place()) return;
  std::vector<store::Spans> next;
  for (const int unit : trace_.upcoming()) {
    if (at(unit).state() != UnitState::sharded || !at(unit).shard_on_host()) continue;
    next.push_back({store::span_of(at(unit).shard())});
  }
  source_.home->ahead(std::move(next));
}

void Gatherer::finish(int unit) {
  if (at(unit).state() != UnitState::gathering) return;
  slot(unit).gather.wait();
  slot(unit).gather = {};
  if (source_.traffic != nullptr) source_.traffic->await(slot(unit).from_host);
  at(unit).show();
  if (!at(unit).keeps_whole()) at(unit).keep_near();
}

void Gatherer::release(int unit) {
  if (at(unit).state() == UnitState::sharded) return;
  finish(unit);  // the memory must not go while the collective writes it
  used(unit);
  at(unit).release(slot(unit).lent || at(unit).keeps_whole());
  slot(unit).lent = false;
  live_bytes_ -= bytes_[static_cast<std::size_t>(unit)];
}

void Gatherer::used(int unit) {
  if (!slot(unit).unused) return;
  slot(unit).unused = false;
  unused_bytes_ -= bytes_[static_cast<std::size_t>(unit)];
}

void Gatherer::start_missing(int unit) {
  if (at(unit).state() != UnitState::sharded) return;
  make_room(bytes_[static_cast<std::size_t>(unit)]);
  start(unit);
}

void Gatherer::pin(int unit) {
  await(unit);
  ++slot(unit).pins;
  try {
    start_missing(unit);
    finish(unit);
  } catch (...) {
    --slot(unit).pins;  // the caller has nothing to unpin then
    throw;
  }
  used(unit);
}

void Gatherer::lend(int unit) {
  pin(unit);
  slot(unit).lent = true;
}

void Gatherer::unpin(int unit) {
  if (--slot(unit).pins > 0 || at(unit).keeps_whole()) return;
  const auto distance = trace_.distance(unit, bytes_);
  // What was lent goes at once: an update must not reach the views that somebody kept.
  const bool soon = !slot(unit).lent && distance.has_value() &&
                    *distance < limits_.max_reuse_bytes && live_bytes_ <= limits_.max_live_bytes;
  if (!soon) release(unit);
}

void Gatherer::need(std::span<const int> units) {
  for (const int unit : units) await(unit);
  take_back();
  const auto count_pins = [&](int by) {
    for (const int unit : units) {
      if (!at(unit).keeps_whole()) slot(unit).pins += by;
    }
  };
  count_pins(1);
  try {
    // All started before the first wait: they travel together.
    for (const int unit : units) {
      if (at(unit).keeps_whole()) continue;
      trace_.use(unit);
      start_missing(unit);
    }
    for (const int unit : units) used(unit);
    // Ahead of the wait, so that the next gathers run behind these.
    prefetch();
    for (const int unit : units) finish(unit);
    read_ahead();
  } catch (...) {
    count_pins(-1);  // done() does not follow; the end of the pass releases what is whole
    throw;
  }
}

void Gatherer::done(std::span<const int> units) {
  for (const int unit : units) {
    if (!at(unit).keeps_whole()) unpin(unit);
  }
}

void Gatherer::prefetch() {
  for (const int unit : trace_.upcoming()) {
    if (at(unit).state() != UnitState::sharded) continue;
    const std::int64_t bytes = bytes_[static_cast<std::size_t>(unit)];
    if (unused_bytes_ + bytes > limits_.prefetch_bytes) return;
    if (live_bytes_ + bytes > limits_.max_live_bytes) return;
    start(unit);
    slot(unit).unused = true;
    unused_bytes_ += bytes;
  }
}

void Gatherer::make_room(std::int64_t bytes) {
  while (live_bytes_ + bytes > limits_.max_live_bytes) {
    // Of what nobody uses now, the one whose next use is farthest away.
    int victim = -1;
    std::int64_t farthest = -1;
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      const bool idle = at(unit).state() == UnitState::whole && slot(unit).pins == 0;
      if (at(unit).keeps_whole() || !idle) continue;
      const std::int64_t distance = trace_.distance(unit, bytes_).value_or(INT64_MAX);
      if (distance > farthest) {
        farthest = distance;
        victim = unit;
      }
    }
    if (victim < 0) return;  // a needed unit is never refused
    release(victim);
  }
}

void Gatherer::end_pass() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    if (!at(unit).keeps_whole() && slot(unit).pins == 0) release(unit);
  }
  trace_.end_pass();
  if (source_.home != nullptr) source_.home->settle();  // an update may follow
}

void Gatherer::give_back() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    if (slot(unit).pins == 0) release(unit);
  }
  gave_back_ = true;
}

void Gatherer::take_back() {
  if (!gave_back_) return;
  gave_back_ = false;
  const auto each = [this](auto&& act) {
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      if (at(unit).keeps_whole()) act(unit);
    }
  };
  each([this](int unit) {
    if (at(unit).state() == UnitState::sharded) start(unit);
  });
  each([this](int unit) { finish(unit); });
}

}  // namespace capstan::shard
