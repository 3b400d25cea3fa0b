#include "capstan/shard/memory.h"

#include <algorithm>
#include <vector>

#include "capstan/shard/unit_bytes.h"

namespace capstan::shard {
namespace {

using store::MemoryKind;
using store::MemoryUse;
using store::Placement;

// Gradient bytes while the units are reduced one after the other. `fill`: the buffers are filled on
// the way (in backward; resident ones from its start, for every block has some of their parameters)
// instead of before (at the step). `alone`: a buffer itself becomes the sum.
std::int64_t peak_of_reduction(const std::vector<UnitBytes>& order, bool fill, bool alone) {
  std::int64_t held = 0;
  for (const UnitBytes& unit : order) {
    if (!fill || unit.resident) held += unit.local;
  }
  std::int64_t peak = held;
  std::int64_t in_flight = 0;  // freed when the next one is issued
  for (const UnitBytes& unit : order) {
    if (fill && !unit.resident) held += unit.local;
    peak = std::max(peak, held);
    held -= in_flight;
    if (alone) continue;
    held += unit.sum + unit.converted;
    peak = std::max(peak, held);
    if (unit.converted > 0) held -= unit.local;
    in_flight = unit.travelling();
  }
  return peak;
}

}  // namespace

UnitBytes bytes_of(const UnitSpec& unit, const Settings& settings) {
  const bool alone = unit.layout.world_size() == 1;
  const bool sharded = settings.policy.shards_optimizer();
  UnitBytes bytes;
  bytes.resident = unit.resident;
  bytes.released = settings.policy.params == Gather::per_use && !unit.resident;
  bytes.shard =
      bytes.released ? unit.layout.shard_elems() * size_bytes(unit.dtype) : unit.whole_bytes();
  if (bytes.released && unit.near_shards > 0) bytes.near = unit.whole_bytes() / unit.near_shards;
  bytes.whole = bytes.released && !alone ? unit.whole_bytes() : 0;
  if (!unit.trainable) return bytes;
  const std::int64_t padded = unit.layout.padded_elems();
  const std::int64_t owned = sharded ? unit.layout.shard_elems() : padded;
  const std::int64_t accum = size_bytes(settings.reduce.accum);
  bytes.local = padded * size_bytes(unit.dtype);
  bytes.wide = padded * std::max(accum, size_bytes(unit.dtype));
  bytes.sum = bytes.local;  // alone: the gradient buffer itself becomes the sum
  if (!alone) {
    bytes.sum = unit.layout.shard_elems() * accum;
    const DType travel = unit.travel.value_or(settings.reduce.travel);
    bytes.converted = unit.dtype == travel ? 0 : padded * size_bytes(travel);
    bytes.whole_sum = sharded ? 0 : padded * accum;
  }
  const DType of_master = master_dtype(settings.states, unit.dtype);
  const std::int64_t master = of_master == unit.dtype ? 0 : size_bytes(of_master);
  const auto moments = static_cast<std::int64_t>(settings.states.moment_names.size());
  bytes.states = owned * (master + moments * size_bytes(settings.states.moments));
  return bytes;
}

MemoryForecast forecast(const Plan& plan, const Settings& settings) {
  std::vector<UnitBytes> units;
  std::vector<UnitBytes> trainable;  // in the order of reduction
  MemoryForecast result;
  for (const UnitSpec& unit : plan.units) {
    units.push_back(bytes_of(unit, settings));
    result.rest[MemoryKind::parameters] += units.back().shard + units.back().near;
    result.rest[MemoryKind::optimizer] += units.back().states;
    if (unit.trainable) trainable.insert(trainable.begin(), units.back());
  }
  std::int64_t most_whole = 0;
  for (const std::vector<int>& needed : plan.boundary_units) {
    std::int64_t whole = 0;
    for (const int unit : needed) whole += units[static_cast<std::size_t>(unit)].whole;
    most_whole = std::max(most_whole, whole);
  }
  result.forward = result.backward = result.step = result.rest;
  result.forward[MemoryKind::parameters] += most_whole;
  result.backward[MemoryKind::parameters] += most_whole;

  std::int64_t locals = 0;
  std::int64_t sums = 0;
  std::int64_t largest_whole_sum = 0;
  for (const UnitBytes& unit : trainable) {
    locals += unit.local;
    sums += unit.sum;
    largest_whole_sum = std::max(largest_whole_sum, unit.whole_sum);
  }
  const bool alone = plan.units.empty() || plan.units.front().layout.world_size() == 1;
  const bool at_step = settings.reduce.schedule == ReduceSchedule::at_step;
  result.backward[MemoryKind::gradients] =
      at_step ? locals : peak_of_reduction(trainable, true, alone);
  // After a backward the last unit may still travel when the step begins.
  const std::int64_t last = alone || trainable.empty() ? 0 : trainable.back().travelling();
  result.step[MemoryKind::gradients] = std::max(
      at_step ? peak_of_reduction(trainable, false, alone) : sums + last, sums + largest_whole_sum);
  return result;
}

namespace {

// Beside the old state of a unit that is updated in backward.
MemoryUse fresh_bytes(const UnitSpec& unit, const Settings& settings) {
  const std::int64_t elems = unit.layout.shard_elems();
  const auto moments = static_cast<std::int64_t>(settings.states.moment_names.size());
  MemoryUse use;
  const DType master = master_dtype(settings.states, unit.dtype);
  use[MemoryKind::optimizer] =
      elems * (size_bytes(master) + moments * size_bytes(settings.states.moments));
  if (master != unit.dtype) {
    use[MemoryKind::parameters] = elems * size_bytes(unit.dtype);
  }
  return use;
}

}  // namespace

std::int64_t device_need(const Plan& plan, const Settings& settings) {
  // Gradient buffers of a whole unit at a time: one is filled, one is reduced, one leaves.
  constexpr std::int64_t kLocals = 3;
  const std::vector<UnitHomes> homes = choose_homes(plan, settings.policy, settings.host.homes);
  const bool at_step = settings.reduce.schedule == ReduceSchedule::at_step;
  std::int64_t kept = 0;
  std::int64_t whole = 0;
  std::int64_t largest_whole = 0;
  std::int64_t largest_local = 0;
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitBytes unit = bytes_of(plan.units[i], settings);
    const bool shard_here = homes[i].params == Placement::device;
    kept += unit.near + (shard_here ? unit.shard : 0);
    if (homes[i].states == Placement::device) kept += unit.states + unit.sum;
    if (at_step || unit.resident) kept += unit.local;
    const std::int64_t gathered = shard_here ? unit.whole : plan.units[i].whole_bytes();
    whole += gathered;
    largest_whole = std::max(largest_whole, gathered);
    largest_local = std::max(largest_local, unit.local + unit.converted);
  }
  return kept + kLocals * largest_local +
         std::min(whole, std::max(2 * largest_whole, settings.limits.max_live_bytes));
}

void spill(const Plan& plan, std::int64_t device_bytes, Settings& settings) {
  const Homes most = settings.host.homes;
  settings.host.homes.optimizer.share = settings.host.homes.params.share = 0;
  while (device_need(plan, settings) > device_bytes &&
         move_one_more(plan, settings.policy, most, settings.host.homes)) {
  }
}

std::vector<bool> early_units(const Plan& plan, const Settings& settings) {
  std::vector<bool> early(plan.units.size(), false);
  const std::vector<UnitHomes> homes = choose_homes(plan, settings.policy, settings.host.homes);
  std::int64_t bytes = 0;
  for (std::size_t i = plan.units.size(); i-- > 0;) {
    if (homes[i].states == Placement::device) continue;
    bytes += fresh_bytes(plan.units[i], settings).total();
    if (bytes > settings.host.early_bytes) break;
    early[i] = true;
  }
  return early;
}

MemoryUse disk_forecast(const Plan& plan, const Settings& settings) {
  MemoryUse use;
  const std::vector<UnitHomes> homes = choose_homes(plan, settings.policy, settings.host.homes);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& unit = plan.units[i];
    if (homes[i].states == Placement::nvme) {
      use[MemoryKind::optimizer] += fresh_bytes(unit, settings)[MemoryKind::optimizer];
    }
    if (homes[i].params == Placement::nvme) {
      use[MemoryKind::parameters] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
  }
  return use;
}

MemoryUse host_forecast(const Plan& plan, const Settings& settings) {
  MemoryUse use;
  const std::vector<UnitHomes> homes = choose_homes(plan, settings.policy, settings.host.homes);
  const std::vector<bool> early = early_units(plan, settings);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& unit = plan.units[i];
    if (early[i]) use += fresh_bytes(unit, settings);
    const UnitBytes bytes = bytes_of(unit, settings);
    const bool params = homes[i].params == Placement::host;
    if (params) {
      use[MemoryKind::parameters] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
    if (homes[i].gradients() == Placement::host) use[MemoryKind::gradients] += bytes.sum;
    if (homes[i].states != Placement::host) continue;
    use[MemoryKind::optimizer] += bytes.states;
    // A master that cannot be the parameters themselves, because those are elsewhere.
    if (!params && master_dtype(settings.states, unit.dtype) == unit.dtype) {
      use[MemoryKind::optimizer] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
  }
  return use;
}

}  // namespace capstan::shard
