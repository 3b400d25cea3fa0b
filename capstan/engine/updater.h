// One optimizer update of everything this rank owns, unit by unit; each unit's new parameters
// travel while the next one is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capstan/engine/param_groups.h"
#include "capstan/optim/cuda/update.h"
#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

struct UpdateScalars {
  std::int64_t step = 1;           // from 1; skipped steps do not count
  double grad_factor = 1;          // from the summed gradient to the one that is applied
  std::vector<double> lr;          // by parameter group
  std::optional<double> momentum;  // from a schedule that moves it
  // On a GPU, where the updater takes one: decides on the device, and replaces grad_factor.
  const optim::StepGate* gate = nullptr;

  bool operator==(const UpdateScalars&) const = default;
};

// One state of the optimizer, e.g. "exp_avg", over the elements that this rank updates.
struct StateColumn {
  struct Part {
    int unit = 0;
    layout::SlotPiece piece;  // in_shard counts from the first owned element
    at::Tensor values;        // 1-D, one element for each of the piece
  };
  std::string name;
  std::vector<Part> parts;
};

inline constexpr const char* kUnknownOptimizer = "unknown";

// Ranks: update() is collective.
class Updater {
 public:
  virtual ~Updater() = default;
  virtual void update(shard::ShardedModel& model, const UpdateScalars& scalars) = 0;
  // Before the gradients are looked at: what update() will need may be fetched meanwhile. The step
  // may yet be skipped.
  virtual void expect_update(shard::ShardedModel& /*model*/) {}
  // True: update() may be called with a gate, before its outcome is known.
  virtual bool takes_gate() const { return false; }
  // True: update_early() is there, and update() keeps what it made of units.
  virtual bool updates_early() const { return false; }
  // Fills `fresh` with what update() would make of the unit, whose gradient is complete. Ends when
  // go_on() is false.
  virtual void update_early(shard::ShardedModel& /*model*/, int /*unit*/,
                            const UpdateScalars& /*scalars*/, shard::FreshStates& /*fresh*/,
                            const shard::UpdateQueue::GoOn& /*go_on*/) {}
  // Of each parameter group, where the engine keeps them.
  virtual void set_hyper_params(const std::vector<optim::HyperParams>& /*groups*/) {}

  // For checkpoints: which optimizer it is (empty: none; kUnknownOptimizer: one whose state only it
  // knows), its states as they are in memory, and its counters.
  virtual std::string kind() const { return ""; }
  virtual std::vector<StateColumn> state_columns(shard::ShardedModel& /*model*/) { return {}; }
  virtual std::map<std::string, double> state_scalars() const { return {}; }
  // Null: only the optimizer knows.
  virtual const ParamGroups* param_groups() const { return nullptr; }
  // Before a load fills state_columns(): makes these states where the optimizer would make them at
  // its first step, and sets the counters.
  virtual void make_states(const std::vector<std::string>& /*names*/,
                           const std::map<std::string, double>& /*scalars*/) {}
};

using UpdaterFactory = std::function<std::unique_ptr<Updater>(shard::ShardedModel& model)>;

// With our own kernels. The model's states were made for `options.kind`.
class KernelUpdater final : public Updater {
 public:
  // `workers` must outlive this.
  KernelUpdater(const optim::Options& options, const shard::ShardedModel& model,
                optim::WorkerPool& workers);

  void update(shard::ShardedModel& model, const UpdateScalars& scalars) override;
  void expect_update(shard::ShardedModel& model) override;
  bool takes_gate() const override {
    return device_.is_cuda() && !any_on_host_ && kind_ != optim::Kind::lamb;
  }
  bool updates_early() const override { return kind_ != optim::Kind::lamb; }
  void update_early(shard::ShardedModel& model, int unit, const UpdateScalars& scalars,
                    shard::FreshStates& fresh, const shard::UpdateQueue::GoOn& go_on) override;
  void set_hyper_params(const std::vector<optim::HyperParams>& groups) override {
    groups_.hyper = groups;
  }
  std::string kind() const override { return std::string(optim::name(kind_)); }
  std::vector<StateColumn> state_columns(shard::ShardedModel& model) override;
  std::map<std::string, double> state_scalars() const override;
  const ParamGroups* param_groups() const override { return &groups_; }

 private:
  // Elements of a unit with one group: element-wise kernels run over neighbours and the padding
  // between them at once; LAMB runs over the piece that one rank owns of one parameter.
  struct Stretch {
    int param = 0;  // the first one
    int group = 0;
    int rank = 0;             // whose shard it lies in
    layout::ElemRange range;  // in the owned elements
  };

  // Where new values of the elements of `range` go; undefined: nowhere, the master is all there is.
  struct Target {
    layout::ElemRange range;
    at::Tensor values;
    const shard::FreshStates* fresh = nullptr;  // instead of the states themselves
    // The states of the range where the processor has them, master first; empty: their own memory.
    std::span<std::byte* const> columns;
  };

  std::vector<Stretch> stretches_of(const shard::ShardedModel& model, int unit) const;
  // Without a parameter column.
  optim::Span span_of(const shard::UnitStates& states, const at::Tensor& grads,
                      layout::ElemRange range) const;
  optim::StepScalars scalars_of(const UpdateScalars& scalars, int group) const;
  // Units that step() updates, and those that it leaves to the time after it; each in its order.
  struct Order {
    std::vector<int> now;
    std::vector<int> later;
  };
  static Order order_of(const shard::ShardedModel& model);
  void update_elements(shard::ShardedModel& model, const UpdateScalars& scalars);
  void update_unit(shard::ShardedModel& model, int unit, const UpdateScalars& scalars);
  // Calls kernel(stretch, span) for all that this rank owns of a unit; the spans' parameter column
  // is where new values go, and they go on from there to where the parameters live.
  using Kernel = std::function<void(const Stretch& stretch, const optim::Span& span)>;
  void write_params(shard::ShardedModel& model, int unit, const at::Tensor& grads,
                    const Kernel& kernel);
  // Of an update on the host: what is computed at a time.
  static std::vector<layout::ElemRange> pieces_of(const shard::ShardedModel& model, int unit);
  void run_stretches(const shard::ShardedModel& model, int unit, const at::Tensor& grads,
                     const Target& target, const Kernel& kernel);
  void update_lamb(shard::ShardedModel& model, const UpdateScalars& scalars);
  std::vector<double> lamb_slot_sums(shard::ShardedModel& model, const UpdateScalars& scalars);
  // Of each stretch of a unit.
  std::vector<optim::LambSums> prepare_lamb(shard::ShardedModel& model, int unit,
                                            const UpdateScalars& scalars);
  std::vector<optim::LambSums> prepare_lamb_on_device(shard::ShardedModel& model, int unit,
                                                      const UpdateScalars& scalars);
  const optim::HyperParams& hyper_of(const Stretch& stretch) const {
    return groups_.hyper[static_cast<std::size_t>(stretch.group)];
  }

  c10::Device device_;
  bool any_on_host_ = false;
  optim::Kind kind_;
  ParamGroups groups_;
  optim::CpuRun run_;
  std::vector<std::vector<Stretch>> stretches_;  // by unit
};

}  // namespace capstan::engine
