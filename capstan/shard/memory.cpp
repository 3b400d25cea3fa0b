#include "capstan/shard/memory.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace capstan::shard {
namespace {

using store::MemoryKind;
using store::MemoryUse;

struct UnitBytes {
  std::int64_t whole = 0;  // gathered parameters
  std::int64_t shard = 0;  // kept parameters
  std::int64_t near = 0;   // our part of their second copy
  std::int64_t local = 0;  // a flat gradient buffer
  std::int64_t sum = 0;    // our shard of the sum
  std::int64_t converted = 0;
  std::int64_t whole_sum = 0;
  std::int64_t states = 0;
  bool released = false;
  bool resident = false;

  std::int64_t travelling() const { return converted > 0 ? converted : local; }
};

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

namespace {

// The last units among those that `may`, until they hold this share of all elements that may.
std::vector<bool> last_units(const Plan& plan, double share, const std::vector<bool>& may) {
  double all = 0;
  for (std::size_t i = 0; i < may.size(); ++i) {
    if (may[i]) all += static_cast<double>(plan.units[i].layout.padded_elems());
  }
  std::vector<bool> taken(may.size(), false);
  double elems = 0;
  for (std::size_t i = may.size(); i-- > 0;) {
    if (!may[i] || elems >= share * all) continue;
    taken[i] = true;
    elems += static_cast<double>(plan.units[i].layout.padded_elems());
  }
  return taken;
}

// Raises `share`, which `may` bounds, by one unit; false: there is none left.
bool raise(const Plan& plan, const std::vector<bool>& may, double most, double& share) {
  const std::vector<bool> now = last_units(plan, share, may);
  const std::vector<bool> limit = last_units(plan, most, may);
  double all = 0;
  double elems = 0;
  bool raised = false;
  for (std::size_t i = may.size(); i-- > 0;) {
    if (!may[i]) continue;
    const auto size = static_cast<double>(plan.units[i].layout.padded_elems());
    all += size;
    const bool next = !raised && !now[i] && limit[i];
    raised = raised || next;
    if (now[i] || next) elems += size;
  }
  if (raised) share = (elems - 0.5) / all;  // half an element less: exactly these
  return raised;
}

std::vector<bool> trainable_units(const Plan& plan) {
  std::vector<bool> may;
  may.reserve(plan.units.size());
  for (const UnitSpec& unit : plan.units) may.push_back(unit.trainable);
  return may;
}

std::vector<bool> released_units(const Plan& plan, const Settings& settings) {
  std::vector<bool> may;
  may.reserve(plan.units.size());
  for (const UnitSpec& unit : plan.units) may.push_back(bytes_of(unit, settings).released);
  return may;
}

}  // namespace

std::vector<bool> states_on_host(const Plan& plan, const Settings& settings) {
  return last_units(plan, settings.host.optimizer_share, trainable_units(plan));
}

std::vector<bool> params_on_host(const Plan& plan, const Settings& settings) {
  return last_units(plan, settings.host.params_share, released_units(plan, settings));
}

std::int64_t device_need(const Plan& plan, const Settings& settings) {
  // Gradient buffers of a whole unit at a time: one is filled, one is reduced, one leaves.
  constexpr std::int64_t kLocals = 3;
  const std::vector<bool> states = states_on_host(plan, settings);
  const std::vector<bool> shards = params_on_host(plan, settings);
  const bool at_step = settings.reduce.schedule == ReduceSchedule::at_step;
  std::int64_t kept = 0;
  std::int64_t whole = 0;
  std::int64_t largest_whole = 0;
  std::int64_t largest_local = 0;
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitBytes unit = bytes_of(plan.units[i], settings);
    kept += unit.near + (shards[i] ? 0 : unit.shard);
    if (!states[i]) kept += unit.states + unit.sum;
    if (at_step || unit.resident) kept += unit.local;
    const std::int64_t gathered = shards[i] ? plan.units[i].whole_bytes() : unit.whole;
    whole += gathered;
    largest_whole = std::max(largest_whole, gathered);
    largest_local = std::max(largest_local, unit.local + unit.converted);
  }
  return kept + kLocals * largest_local +
         std::min(whole, std::max(2 * largest_whole, settings.limits.max_live_bytes));
}

void spill(const Plan& plan, std::int64_t device_bytes, Settings& settings) {
  const double most_states = std::exchange(settings.host.optimizer_share, 0.0);
  const double most_params = std::exchange(settings.host.params_share, 0.0);
  while (device_need(plan, settings) > device_bytes) {
    if (raise(plan, trainable_units(plan), most_states, settings.host.optimizer_share)) continue;
    if (raise(plan, released_units(plan, settings), most_params, settings.host.params_share)) {
      continue;
    }
    return;
  }
}

std::vector<bool> early_units(const Plan& plan, const Settings& settings) {
  std::vector<bool> early(plan.units.size(), false);
  const std::vector<bool> on_host = states_on_host(plan, settings);
  std::int64_t bytes = 0;
  for (std::size_t i = plan.units.size(); i-- > 0;) {
    if (!on_host[i]) continue;
    bytes += fresh_bytes(plan.units[i], settings).total();
    if (bytes > settings.host.early_bytes) break;
    early[i] = true;
  }
  return early;
}

MemoryUse disk_forecast(const Plan& plan, const Settings& settings) {
  MemoryUse use;
  const std::vector<bool> states = states_on_host(plan, settings);
  const std::vector<bool> shards = params_on_host(plan, settings);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& unit = plan.units[i];
    if (states[i] && !settings.host.swap_folders.empty()) {
      use[MemoryKind::optimizer] += fresh_bytes(unit, settings)[MemoryKind::optimizer];
    }
    if (shards[i] && !settings.host.param_folders.empty()) {
      use[MemoryKind::parameters] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
  }
  return use;
}

MemoryUse host_forecast(const Plan& plan, const Settings& settings) {
  MemoryUse use;
  const std::vector<bool> on_host = states_on_host(plan, settings);
  const std::vector<bool> shards = params_on_host(plan, settings);
  const std::vector<bool> early = early_units(plan, settings);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& unit = plan.units[i];
    if (early[i]) use += fresh_bytes(unit, settings);
    const UnitBytes bytes = bytes_of(unit, settings);
    const bool params = shards[i] && settings.host.param_folders.empty();
    if (params) {
      use[MemoryKind::parameters] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
    if (!on_host[i]) continue;
    use[MemoryKind::gradients] += bytes.sum;
    if (!settings.host.swap_folders.empty()) continue;
    use[MemoryKind::optimizer] += bytes.states;
    // A master that cannot be the parameters themselves, because those are elsewhere.
    if (!params && master_dtype(settings.states, unit.dtype) == unit.dtype) {
      use[MemoryKind::optimizer] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
  }
  return use;
}

}  // namespace capstan::shard
