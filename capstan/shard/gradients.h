// The gradients of a model: our shard of each unit's sum over ranks, wherever that lives.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "capstan/shard/ground.h"
#include "capstan/shard/reduce.h"
#include "capstan/shard/updates.h"
#include "capstan/store/host_sums.h"

namespace capstan::shard {

// Told of gradient shards while they are still on the device, by the thread of the backward.
class GradWatcher {
 public:
  virtual ~GradWatcher() = default;
  // It leaves for the host. `alone`: it is the step's first of its unit, and so far the whole sum.
  virtual void leaves(int unit, const at::Tensor& sum, bool alone) = 0;
};

//   empty --arrived--> filling --(all of a unit are there)--> reducing --> summed --clear--> empty
// Owns:    everything between a backward and the step that uses it.
// Threads: one caller at a time.
// Ranks:   collective, as Reducer.
class Gradients final : private GradSink, private store::SumWatcher {
 public:
  // `updates` are told of gradients that are complete on the host; `watcher` may be null. All must
  // outlive this.
  Gradients(const Ground& ground, Updates& updates, GradWatcher* watcher);

  void begin_backward(bool sync) { reducer_.begin_backward(sync); }
  void arrived(int param, const at::Tensor& grad) { reducer_.arrived(param, grad); }
  void end_backward() { reducer_.end_backward(); }

  // Before the step: everything is reduced and where it lives. Throws ConfigError naming unused
  // parameters where the settings forbid them.
  void finish();
  // After finish(): our shard of the sum; on the host for units whose states are there.
  const at::Tensor& shard(int unit) const;
  // Collective: the gradients of all elements this rank updates; a whole sum where the optimizer is
  // not sharded.
  at::Tensor owned(int unit);
  // After the step, or when it is skipped: forgets all of them.
  void clear();

  Reducer& reducer() { return reducer_; }

 private:
  bool takes(int unit) const override;
  void take(int unit, at::Tensor sum) override;
  void leaves(int unit, const at::Tensor& sum, bool alone) override;
  void complete(int unit, store::Arrival arrival) override;
  void changes(int unit) override;
  void check_all_used() const;

  Ground ground_;
  Updates& updates_;
  GradWatcher* watcher_;
  std::unique_ptr<store::HostSums> host_;  // null: no gradient leaves the device
  Reducer reducer_;
};

}  // namespace capstan::shard
