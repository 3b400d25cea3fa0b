// Gradients -> our shard of their sum over ranks: accumulate locally, reduce in plan order, keep
// the sum until the step.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/mesh_groups.h"
#include "capstan/shard/local_grads.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"
#include "capstan/shard/unit_groups.h"

namespace capstan::shard {

// Takes finished sums away: to another home than the device's memory.
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual bool takes(int unit) const = 0;
  // Our shard of the sum over ranks, of one backward. The sink adds those of several.
  virtual void take(int unit, at::Tensor sum) = 0;
};

// Every rank reduces the same units in the same order (the reverse of the plan's) whatever its own
// graph used: a unit is issued when it is complete and all before it are issued; the end of the
// backward issues the rest, with zeros for what did not come.
// Owns:    local gradients, gradient shards, reductions in flight.
// Threads: one caller at a time.
// Ranks:   collective: end_backward(), finish() and, while backward runs, arrived().
class Reducer {
 public:
  // `plan`, `groups`, `pool` and `sink` (null: nobody takes sums away) must outlive this.
  Reducer(const Plan& plan, const ModelGroups& groups, store::Pool& pool,
          const ReduceSettings& settings, GradSink* sink = nullptr);

  // sync false: this backward only accumulates locally (a "no sync" scope).
  void begin_backward(bool sync);
  // That ended since clear().
  std::int64_t backwards() const { return backwards_; }
  // Whether a backward began, or somebody set a sum, since clear().
  bool began() const { return began_; }
  void sum_was_set() { began_ = true; }
  void arrived(int param, const at::Tensor& grad);
  // Gradients come from several graphs in this backward (re-entrant recomputation): a parameter may
  // come again after its unit was reduced, perhaps on this rank only.
  void saw_several_graphs() { several_graphs_ = true; }
  void end_backward();

  // Before the step: everything is reduced and nothing is in flight any more.
  void finish();
  // Our shard of the sum, after finish(); undefined for frozen units and for those of a sink.
  const at::Tensor& sum(int unit) const;
  // Trainable parameters that got no gradient on this rank since the last clear().
  std::vector<int> unused_params() const;
  // Of all gradients on the device at this moment, reduced or not. Waits for reductions in flight.
  std::vector<c10::Storage> memory();
  // After the step, or when it is skipped: forgets all gradients.
  void clear();

 private:
  struct UnitGrads {
    std::unique_ptr<LocalGrads> local;  // empty for frozen units
    at::Tensor sum;        // 1-D, shard_elems: over the ranks that share the unit's cut
    at::Tensor total;      // likewise, over replicas and stages too; undefined without any
    bool has_sum = false;  // here or in the sink
    int arrived = 0;       // parameters that came in this backward
    bool issued = false;   // in this backward
    bool late = false;     // a gradient came after that: a re-entrant backward
  };
  struct InFlight {
    int unit = 0;
    comm::PendingOp op;
    at::Tensor converted;  // what travels, where it is not the local buffer itself
  };

  bool flying(int unit) const;
  void issue_ready();
  void reduce_late();
  void issue(int unit);
  void add_alone(int unit);
  void widen(at::Tensor& sum);
  comm::PendingOp start_total(int unit);
  void keep_total(int unit);
  void sum_over_replicas();
  void sum_over_stages();
  void add_up(int unit);
  void hand_over(int unit);
  void settle(std::size_t at_most);
  void settle_unit(int unit);
  UnitGrads& at(int unit) { return grads_[static_cast<std::size_t>(unit)]; }
  const UnitGroups& groups(int unit) const { return groups_.units[static_cast<std::size_t>(unit)]; }

  const Plan& plan_;
  const ModelGroups& groups_;
  store::Pool& pool_;
  ReduceSettings settings_;
  GradSink* sink_;
  std::vector<UnitGrads> grads_;
  std::vector<int> order_;  // trainable units as they are reduced
  std::size_t next_ = 0;    // in order_: the first not yet issued in this backward
  bool sync_ = true;
  bool began_ = false;
  std::int64_t backwards_ = 0;
  bool several_graphs_ = false;
  bool unreduced_ = true;  // there may be local gradients that finish() must still reduce
  std::deque<InFlight> in_flight_;
  std::vector<char> came_in_backward_;  // by parameter
  std::vector<char> came_since_clear_;  // by parameter
};

}  // namespace capstan::shard
