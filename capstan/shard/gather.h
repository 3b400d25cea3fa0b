// Makes units whole for use and releases them again: the collective, the prefetch of what comes
// next, and the limits on how much is whole at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capstan/shard/settings.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/unit_groups.h"
#include "capstan/shard/use_trace.h"
#include "capstan/store/home.h"
#include "capstan/store/host_traffic.h"

namespace capstan::shard {

class Updates;

// Where the values of shards come from; null where a model has none of the kind. All outlive the
// gatherer.
struct ShardSource {
  Updates* updates = nullptr;   // a unit is waited for before its shard is read
  store::Home* home = nullptr;  // of shards that are not on the device
  store::HostTraffic* traffic = nullptr;
};

// Owns:    gathers in flight.
// Threads: one caller at a time.
// Ranks:   collective; every rank calls in the same order.
class Gatherer {
 public:
  // `groups` are those of each unit. All must outlive this.
  Gatherer(std::span<Unit> units, std::span<const UnitGroups> groups, const GatherLimits& limits,
           ShardSource source = {});

  // Makes these units whole and pins them, then starts gathering what usually comes next. When this
  // or pin() throws, nothing is pinned.
  void need(std::span<const int> units);
  // Unpins; what nobody needs is released, unless it is used again soon.
  void done(std::span<const int> units);
  // Like need() and done(), but outside of the recorded order of use: no prefetch.
  void pin(int unit);
  void unpin(int unit);
  // Like pin(), for somebody who may keep views of the parameters: they outlive the release.
  void lend(int unit);
  // Releases everything that is not pinned and closes the recorded pass.
  void end_pass();
  // Releases also units that stay whole between uses; views that somebody kept of them live on.
  // take_back(), which need() begins with, makes them whole again.
  void give_back();
  void take_back();

  const UseTrace& trace() const { return trace_; }
  std::int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Slot {
    comm::PendingOp gather;
    store::Arrival from_host;  // world of one: the copy is all there is to wait for
    int pins = 0;
    bool lent = false;    // since it is whole
    bool unused = false;  // prefetched and not yet used
  };

  void start(int unit);
  void start_missing(int unit);
  void start_from_host(int unit, const at::Tensor& values);
  at::Tensor on_host(int unit);
  void await(int unit);
  void read_ahead();
  void finish(int unit);
  void release(int unit);
  void prefetch();
  void make_room(std::int64_t bytes);
  void used(int unit);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  Slot& slot(int unit) { return slots_[static_cast<std::size_t>(unit)]; }
  const UnitGroups& groups(int unit) const { return groups_[static_cast<std::size_t>(unit)]; }

  std::span<Unit> units_;
  std::span<const UnitGroups> groups_;
  GatherLimits limits_;
  ShardSource source_;
  UseTrace trace_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> bytes_;  // of each unit when whole; 0 for those that stay whole
  std::int64_t live_bytes_ = 0;
  std::int64_t unused_bytes_ = 0;  // prefetched and not yet used
  bool gave_back_ = false;
};

}  // namespace capstan::shard
