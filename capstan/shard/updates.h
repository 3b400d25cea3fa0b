// The optimizer's states, and the way of what an update makes of them to where the parameters live,
// on every rank. Updates beside the training thread go through its queue.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"
#include "capstan/shard/ground.h"
#include "capstan/shard/states.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/update_queue.h"

namespace capstan::shard {

// Owns:    the states, and updates and values on their way.
// Threads: one caller at a time; await() any.
class Updates {
 public:
  // `states` by unit, empty for frozen ones. `units` must outlive this.
  Updates(const Ground& ground, std::span<Unit> units, std::vector<UnitStates> states);

  // Trainable units in the order in which a step updates them.
  std::span<const int> order() const { return order_; }
  UnitStates& states(int unit) { return states_[static_cast<std::size_t>(unit)]; }
  const UnitStates& states(int unit) const { return states_[static_cast<std::size_t>(unit)]; }
  // Whether the processor updates it; and where its states then live between steps.
  bool on_host(int unit) const { return homes(unit).states != store::Placement::device; }
  store::Home& states_home(int unit) { return ground_.places.states(homes(unit).states); }

  // For units whose states are on the host: memory for new values of some owned elements; and their
  // way to `states().params` from `begin` on, beside the host's next work.
  bool sends_values(int unit) const;
  at::Tensor new_values(int unit, std::int64_t elems);
  void send_values(int unit, std::int64_t begin, at::Tensor values);
  // For units whose parameters are on the host but whose states are not: the way back.
  void fetch_values(int unit, at::Tensor values);
  // Collective: after a unit's `states().params` were updated. Starts the gather that makes the
  // change visible on all ranks; finish() waits for all of them.
  void publish(int unit);
  void finish();

  // Whether the unit may be updated beside the next forward, which then waits for it at its use;
  // and doing so: update(unit) is called for each in order, on the queue's thread.
  bool can_be_late(int unit) const;
  void start_late(std::vector<int> units, std::function<void(int unit)> update);
  // Returns when the unit is up to date.
  void await(int unit);
  // Likewise for all units.
  void settle_late();

  // Updates in backward; null where there are none. keep_early(): what was made of the unit becomes
  // its state; false: nothing was made.
  UpdateQueue* early() { return may_be_early_.empty() ? nullptr : queue_.get(); }
  FreshStates make_fresh(int unit) {
    return shard::make_fresh(states(unit), ground_.places.host());
  }
  bool made_early(int unit) const { return !may_be_early_.empty() && queue_->made(unit); }
  bool keep_early(int unit);
  // The unit's gradient on the host is complete once `arrival` has come; and before it changes.
  void gradient_complete(int unit, store::Arrival arrival);
  void gradient_changes(int unit);

  // Returns when all states and values are where they live; drops early updates.
  void settle();
  // Returns when no values that travel to the device are read from host memory any more.
  void finish_sends();
  void backward_begins();
  // Ends the thread: late updates are finished, early ones dropped.
  void stop() noexcept;

 private:
  const UnitHomes& homes(int unit) const { return ground_.homes[static_cast<std::size_t>(unit)]; }
  const UnitSpec& spec(int unit) const {
    return ground_.plan.units[static_cast<std::size_t>(unit)];
  }
  profile::Recorder* recorder() const { return ground_.groups.all.recorder().get(); }

  Ground ground_;
  std::span<Unit> units_;
  std::vector<UnitStates> states_;
  std::vector<int> order_;
  std::vector<bool> may_be_early_;  // by unit; empty: none
  std::vector<comm::PendingOp> publishing_;
  std::unique_ptr<store::HostTraffic> late_traffic_;  // null where nothing is late, and used by
                                                      // the queue's thread while that runs
  store::Arrival late_arrival_;                       // likewise: of the last values it sent
  bool updating_late_ = false;                        // likewise
  std::unique_ptr<UpdateQueue> queue_;  // null: none beside. Last: ends before what it uses
};

}  // namespace capstan::shard
