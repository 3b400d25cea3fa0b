// A model's parameters, gradients and optimizer state, sharded by a policy: the one core behind all
// stages. Front ends (hooks.h for C++, the Python package) tell it what the model does.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/base/own_process.h"
#include "capstan/shard/early_updates.h"
#include "capstan/shard/gather.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/host_grads.h"
#include "capstan/shard/late_updates.h"
#include "capstan/shard/model_view.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/reduce.h"
#include "capstan/shard/settings.h"
#include "capstan/shard/states.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/unit_groups.h"
#include "capstan/store/ledger.h"
#include "capstan/store/pool.h"
#include "capstan/store/swap_files.h"
#include "capstan/store/swap_reader.h"

namespace capstan::shard {

// Owns:    all flat buffers, shards and states of one model.
// Threads: one caller at a time.
// Ranks:   every member that says "collective" is called by all ranks in the same order.
class ShardedModel {
 public:
  // Collective. Takes over the parameters of `model`, which are in the plan's order and on one
  // device; rank 0's values become everybody's. Throws CommError when the ranks' plans differ.
  // `mesh` must outlive this.
  ShardedModel(Plan plan, const ModelView& model, comm::MeshGroups& mesh, Settings settings);

  const Plan& plan() const { return plan_; }
  const Settings& settings() const { return settings_; }
  comm::Group& group() const { return groups_.all; }  // all ranks: they agree, count and save
  const comm::MeshGroups& mesh() const { return mesh_; }
  const UnitGroups& groups(int unit) const { return groups_.units[static_cast<std::size_t>(unit)]; }
  const std::string& unit_name(int unit) const {
    return plan_.units[static_cast<std::size_t>(unit)].name;
  }
  c10::Device device() const { return pool_.device(); }
  store::Pool& pool() { return pool_; }
  Reducer& reducer() { return *reducer_; }
  store::Ledger& ledger() { return ledger_; }  // of the device
  store::Ledger& host_ledger() { return host_ledger_; }
  store::Ledger& disk_ledger() { return disk_ledger_; }
  store::SwapFiles* swap_files() { return swap_files_.get(); }  // null: no state is on a disk
  // Why host memory is not page-locked although that was asked for; empty: it is, or none is used.
  std::string why_not_pinned() const;
  Unit& unit(int index) { return units_[static_cast<std::size_t>(index)]; }
  const UseTrace& trace() const { return gatherer_->trace(); }

  // Collective: the parameters a boundary uses are whole from begin_use() to end_use().
  void begin_use(int boundary);
  void end_use(int boundary);

  // One backward. Collective as far as gathers and reductions are due.
  void begin_backward(bool sync);
  void grad_arrived(int param, const at::Tensor& grad);
  void end_backward();

  // Ends what the recorded order of use calls one pass, where no backward does: in evaluation.
  void end_pass();
  // Collective: releases units that nobody holds, also those that stay whole between uses (but not
  // by policy); the next use, backward, save or load makes these whole, with take_back().
  void give_back();
  void take_back() { gatherer_->take_back(); }

  // Collective: reduces what is left, so that gradient_shard() is our shard of the sum.
  // Throws ConfigError naming unused parameters where the settings forbid them.
  void finish_gradients();
  // On the host for units whose states are there.
  const at::Tensor& gradient_shard(int unit) const;
  void clear_gradients();
  HostGrads* host_grads() { return host_grads_.get(); }  // null: no gradient leaves the device

  // Trainable units in the order in which a step updates them.
  std::span<const int> step_order() const { return step_order_; }
  UnitStates& states(int unit) { return states_[static_cast<std::size_t>(unit)]; }
  const UnitStates& states(int unit) const { return states_[static_cast<std::size_t>(unit)]; }
  // Collective: the gradients of all elements this rank updates; a whole sum where the optimizer
  // is not sharded.
  at::Tensor owned_gradient(int unit);
  // For units whose states are on the host: memory for new values of some owned elements; and their
  // way to `states().params` from `begin` on, beside the host's next work.
  bool sends_values(int unit) const;
  at::Tensor new_values(int unit, std::int64_t elems);
  void send_values(int unit, std::int64_t begin, at::Tensor values);
  // Whether the unit may be updated beside the next forward, which then waits for it at its use;
  // and doing so: update(unit) is called for each in order, on a thread of its own.
  bool can_update_late(int unit) const;
  void update_late(std::vector<int> units, std::function<void(int unit)> update);
  void await_update(int unit);
  // Returns when all units are up to date. Every access from outside of forward begins with it.
  void settle_updates();
  std::function<void()> settle_states;  // part of it: where they are still on their way to a disk
  std::function<void()> before_use;     // of anything that is sharded here
  // Ends the threads: late updates are finished, early ones dropped.
  void stop_updates() noexcept;
  // Updates in backward; null where there are none. before_backward: called when one begins, to
  // open it. keep_early(): what it made of the unit becomes its state; false: it made nothing.
  EarlyUpdates* early_updates() { return early_.get(); }
  std::function<void()> before_backward;
  bool updated_early(int unit) const { return early_ != nullptr && early_->has(unit); }
  bool keep_early(int unit);
  // For units whose parameters are on the host but whose states are not: the way back.
  void fetch_values(int unit, at::Tensor values);
  // Collective: after a unit's `states().params` were updated. Starts the gather that makes the
  // change visible on all ranks; finish_updates() waits for all of them.
  void publish(int unit);
  void finish_updates();

  // Collective: keeps a unit whole outside of the model's own uses. Views of a lent one live on.
  void pin(int unit);
  void lend(int unit);
  void unpin(int unit) { gatherer_->unpin(unit); }

 private:
  void enter();
  void check_plans_agree();
  void check_same_use(int boundary);
  void adopt(const ModelView& model);
  Unit adopt_unit(const ModelView& model, int index);
  const UnitHomes& homes(int unit) const { return homes_[static_cast<std::size_t>(unit)]; }
  bool updates_on_host(int unit) const { return homes(unit).states != store::Placement::device; }
  StatesHome states_home(int unit);
  void settle_late();
  void open_swap_files();
  void read_shards_ahead();
  at::Tensor whole_param(const ModelView& model, int index);

  OwnProcess process_;
  Plan plan_;
  Settings settings_;
  comm::MeshGroups& mesh_;
  ModelGroups groups_;
  store::Ledger ledger_;
  store::Pool pool_;
  store::Ledger host_ledger_;
  store::Ledger disk_ledger_;
  std::unique_ptr<store::SwapFiles> swap_files_;  // null without states on a disk, like the next
  std::unique_ptr<store::Pool> swap_pool_;
  std::unique_ptr<store::SwapFiles> param_files_;  // likewise for shards, like the next two
  std::unique_ptr<store::Pool> param_pool_;
  std::unique_ptr<store::SwapReader> reader_;
  std::unique_ptr<store::Pool> host_pool_;   // null where nothing lives on the host, like the next
  std::unique_ptr<store::Pool> shard_pool_;  // of shards there, where it is another one
  std::unique_ptr<HostTraffic> traffic_;
  std::vector<UnitHomes> homes_;  // by unit
  std::unique_ptr<HostGrads> host_grads_;
  bool constants_agree_ = false;  // whether the ranks' parameters of one value are the same ones
  std::vector<Unit> units_;
  std::vector<UnitStates> states_;  // by unit; empty for frozen ones
  std::vector<int> step_order_;
  std::unique_ptr<Gatherer> gatherer_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<comm::PendingOp> publishing_;
  std::unique_ptr<HostTraffic> late_traffic_;  // used by that thread while it runs
  HostTraffic::Ahead late_arrival_;            // likewise: of the last values it sent
  bool updating_late_ = false;                 // likewise
  std::unique_ptr<LateUpdates> late_;          // null where nothing is late
  std::unique_ptr<EarlyUpdates> early_;        // these two last: they end before what they use
};

}  // namespace capstan::shard
