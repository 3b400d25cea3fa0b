// How many bytes a plan takes on one rank, phase by phase: the same arithmetic for the tests, the
// estimator and a report. Pure: computed from the layout, never measured.
#pragma once

#include "capstan/shard/plan.h"
#include "capstan/shard/sharded_model.h"
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

// What one rank keeps in host memory between steps and during them, staging buffers aside, where
// every step has one backward.
store::MemoryUse host_forecast(const Plan& plan, const Settings& settings);

}  // namespace capstan::shard
