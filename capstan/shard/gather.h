// Makes units whole for use and releases them again: the collective, the prefetch of what comes
// next, and the limits on how much is whole at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "capstan/shard/host_traffic.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/unit_groups.h"
#include "capstan/shard/use_trace.h"

namespace capstan::shard {

// Bytes of whole units that are not resident.
struct GatherLimits {
  std::int64_t prefetch_bytes = 0;   // gathered ahead and not yet used
  std::int64_t max_live_bytes = 0;   // above it nothing is prefetched or kept for later
  std::int64_t max_reuse_bytes = 0;  // a unit whose next use is nearer than this stays whole
};

// Owns:    gathers in flight.
// Threads: one caller at a time.
// Ranks:   collective; every rank calls in the same order.
class Gatherer {
 public:
  // `groups` are those of each unit. All must outlive this; traffic is needed for shards on the
  // host.
  Gatherer(std::span<Unit> units, std::span<const UnitGroups> groups, const GatherLimits& limits,
           HostTraffic* traffic = nullptr);

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

  // Called before a unit's shard is read.
  std::function<void(int unit)> before_gather = [](int) {};
  // For shards that are on a disk: their values in host memory. Null: the shard itself is there.
  std::function<at::Tensor(int unit)> bring;

  const UseTrace& trace() const { return trace_; }
  std::int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Slot {
    comm::PendingOp gather;
    HostTraffic::Ahead from_host;  // world of one: the copy is all there is to wait for
    int pins = 0;
    bool lent = false;    // since it is whole
    bool unused = false;  // prefetched and not yet used
  };

  void start(int unit);
  void start_missing(int unit);
  void start_from_host(int unit);
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
  HostTraffic* traffic_;
  UseTrace trace_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> bytes_;  // of each unit when whole; 0 for those that stay whole
  std::int64_t live_bytes_ = 0;
  std::int64_t unused_bytes_ = 0;  // prefetched and not yet used
  bool gave_back_ = false;
};

}  // namespace capstan::shard
