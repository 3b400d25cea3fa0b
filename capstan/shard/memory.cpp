#include "capstan/shard/memory.h"

#include <algorithm>
#include <vector>

namespace capstan::shard {
namespace {

using store::MemoryKind;
using store::MemoryUse;

struct UnitBytes {
  std::int64_t whole = 0;  // gathered parameters
  std::int64_t shard = 0;  // kept parameters
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
  bytes.whole = bytes.released && !alone ? unit.whole_bytes() : 0;
  if (!unit.trainable) return bytes;
  const std::int64_t padded = unit.layout.padded_elems();
  const std::int64_t owned = sharded ? unit.layout.shard_elems() : padded;
  const std::int64_t accum = size_bytes(settings.reduce.accum);
  bytes.local = padded * size_bytes(unit.dtype);
  bytes.sum = bytes.local;  // alone: the gradient buffer itself becomes the sum
  if (!alone) {
    bytes.sum = unit.layout.shard_elems() * accum;
    bytes.converted =
        unit.dtype == settings.reduce.travel ? 0 : padded * size_bytes(settings.reduce.travel);
    bytes.whole_sum = sharded ? 0 : padded * accum;
  }
  const std::int64_t master =
      settings.states.master == unit.dtype ? 0 : size_bytes(settings.states.master);
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
    result.rest[MemoryKind::parameters] += units.back().shard;
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

MemoryUse host_forecast(const Plan& plan, const Settings& settings) {
  MemoryUse use;
  const std::vector<bool> on_host = units_on_host(plan, settings.host.optimizer_share);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitSpec& unit = plan.units[i];
    const UnitBytes bytes = bytes_of(unit, settings);
    const bool params = settings.host.params && bytes.released;
    if (params) {
      use[MemoryKind::parameters] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
    if (!on_host[i]) continue;
    use[MemoryKind::gradients] += bytes.sum;
    use[MemoryKind::optimizer] += bytes.states;
    // A master that cannot be the parameters themselves, because those are elsewhere.
    if (!params && settings.states.master == unit.dtype) {
      use[MemoryKind::optimizer] += unit.layout.shard_elems() * size_bytes(unit.dtype);
    }
  }
  return use;
}

}  // namespace capstan::shard
