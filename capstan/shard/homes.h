// Where the state of each unit lives: one pure function of values, for the engine, for estimates
// and for plans.
#pragma once

#include <string>
#include <vector>

#include "capstan/shard/plan.h"
#include "capstan/shard/policy.h"
#include "capstan/store/options.h"

namespace capstan::shard {

// Where a kind of state shall live, and how much of it.
struct Home {
  store::Placement placement = store::Placement::device;
  double share = 1;                  // of the elements that may live there
  bool pin = true;                   // page-locked host memory
  std::vector<std::string> folders;  // of files, on disks

  bool used() const { return placement != store::Placement::device && share > 0; }
  store::Placement where() const { return used() ? placement : store::Placement::device; }
  bool on_disk() const { return where() == store::Placement::nvme; }
};

// Kinds of state that may live elsewhere than on the device.
struct Homes {
  Home optimizer;  // masters, moments and, in host memory, gradient sums. The host updates them
  Home params;     // shards of units that are released between uses
};

struct UnitHomes {
  store::Placement params = store::Placement::device;  // our shard of them
  store::Placement states = store::Placement::device;  // masters and moments

  // Sums of gradients are where the update that reads them runs.
  store::Placement gradients() const {
    return states == store::Placement::device ? store::Placement::device : store::Placement::host;
  }
  bool operator==(const UnitHomes&) const = default;
};

// By unit. Of what shall live elsewhere, the last units in the plan: their gradients come first,
// and forward uses them last.
std::vector<UnitHomes> choose_homes(const Plan& plan, const Policy& policy, const Homes& homes);

// Moves one more unit off the device, within the shares of `most`: its states first, then its
// parameters. False: there is none left.
bool move_one_more(const Plan& plan, const Policy& policy, const Homes& most, Homes& homes);

}  // namespace capstan::shard
