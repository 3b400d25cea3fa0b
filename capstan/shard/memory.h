// How many bytes a plan takes on one rank, phase by phase: the same arithmetic for the tests, the
// estimator and a report. Pure: computed from the layout, never measured.
#pragma once

#include <vector>

#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"
#include "capstan/store/ledger.h"

namespace capstan::shard {

// Peaks of each kind by itself.
struct MemoryForecast {
  store::MemoryUse rest;      // between steps
  store::MemoryUse forward;   // with nothing prefetched and nothing kept for reuse
  store::MemoryUse backward;  // likewise; every trainable parameter gets one gradient, in order
  store::MemoryUse step;
};

MemoryForecast forecast(const Plan& plan, const Settings& settings);

// The most that one rank holds on the device in a step, activations aside.
std::int64_t device_need(const Plan& plan, const Settings& settings);
// Puts off the device what does not fit: states first, then parameters, each up to the share that
// `settings` has now. Whole units, and no more of them than `device_bytes` demands.
void spill(const Plan& plan, std::int64_t device_bytes, Settings& settings);

// By unit: whether it is updated in backward. As many as the budget holds, of those whose gradients
// come first.
std::vector<bool> early_units(const Plan& plan, const Settings& settings);

// What one rank keeps on disks.
store::MemoryUse disk_forecast(const Plan& plan, const Settings& settings);

// What one rank keeps in host memory between steps and during them, staging buffers aside, where
// every step has one backward.
store::MemoryUse host_forecast(const Plan& plan, const Settings& settings);

}  // namespace capstan::shard
