// A model's parameters, gradients and optimizer state, sharded by a policy: the one core behind all
// stages. Front ends (hooks.h for C++, the Python package) tell it what the model does. It owns the
// three and the memory they live in, and keeps their order; each does its own work.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/base/own_process.h"
#include "capstan/shard/adopt.h"
#include "capstan/shard/gather.h"
#include "capstan/shard/gradients.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/model_view.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/put_aside.h"
#include "capstan/shard/settings.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/unit_groups.h"
#include "capstan/shard/updates.h"
#include "capstan/store/places.h"

namespace capstan::shard {

// Owns:    all flat buffers, shards and states of one model.
// Threads: one caller at a time.
// Ranks:   every member that says "collective" is called by all ranks in the same order.
class ShardedModel {
 public:
  // Collective. Takes over the parameters of `model`, which are in the plan's order and on one
  // device; rank 0's values become everybody's. Throws CommError when the ranks' plans differ.
  // `mesh` and `watcher` (null: nobody) must outlive this.
  ShardedModel(Plan plan, const ModelView& model, comm::MeshGroups& mesh, Settings settings,
               GradWatcher* watcher = nullptr);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  const Plan& plan() const { return plan_; }
  const Settings& settings() const { return settings_; }
  comm::Group& group() const { return groups_.all; }    // all ranks: they agree, count and save
  comm::Group& peers() const { return groups_.peers; }  // the same parameters, for other data
  comm::MeshGroups& mesh() const { return mesh_; }
  const UnitGroups& groups(int unit) const { return groups_.units[static_cast<std::size_t>(unit)]; }
  c10::Device device() const { return device_; }

  // Its parts, for whoever works on one of them: reads, updates, saves.
  store::Places& places() { return *places_; }
  Unit& unit(int index) { return units_[static_cast<std::size_t>(index)]; }
  Gradients& gradients() { return *gradients_; }
  Updates& updates() { return *updates_; }
  const Updates& updates() const { return *updates_; }
  UnitStates& states(int unit) { return updates_->states(unit); }
  const UnitStates& states(int unit) const { return updates_->states(unit); }
  // Trainable units in the order in which a step updates them.
  std::span<const int> step_order() const { return updates_->order(); }
  const UseTrace& trace() const { return gatherer_->trace(); }

  // Collective: the parameters a boundary uses are whole from begin_use() to end_use().
  void begin_use(int boundary);
  void end_use(int boundary);
  // Collective: keeps a unit whole outside of the model's own uses. Views of a lent one live on.
  void pin(int unit);
  void lend(int unit);
  void unpin(int unit) { gatherer_->unpin(unit); }
  // Ends what the recorded order of use calls one pass, where no backward does: in evaluation.
  void end_pass() { gatherer_->end_pass(); }
  // Collective: releases units that nobody holds, also those that stay whole between uses (but not
  // by policy); the next use, backward, save or load makes these whole, with take_back().
  void give_back();
  void take_back() { gatherer_->take_back(); }

  // One backward. Collective as far as gathers and reductions are due.
  void begin_backward(bool sync);
  void grad_arrived(int param, const at::Tensor& grad) { gradients_->arrived(param, grad); }
  void end_backward();
  // Collective: reduces what is left, so that gradients().shard() is our shard of the sum. Throws
  // as Gradients::finish().
  void finish_gradients();
  void clear_gradients();

  // Returns when all units are up to date. Every access from outside of forward begins with it.
  void settle_updates();

  // What is on the device of these kinds goes to the host, until the next use, backward, step or
  // access brings all back. `moments`: the optimizer's, wherever they came from.
  void put_aside(const AsideKinds& kinds, const std::vector<at::Tensor>& moments);
  void bring_back();
  AsideKinds aside() const;

 private:
  void enter();
  void check_plans_agree();
  void check_ties_agree();
  void check_same_use(int boundary);

  OwnProcess process_;
  Plan plan_;
  Settings settings_;
  comm::MeshGroups& mesh_;
  ModelGroups groups_;
  c10::Device device_;
  std::vector<UnitHomes> homes_;  // by unit
  std::unique_ptr<store::Places> places_;
  std::vector<Unit> units_;
  std::unique_ptr<Updates> updates_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Gatherer> gatherer_;
  std::unique_ptr<PutAside> aside_;  // since something was
};

}  // namespace capstan::shard
