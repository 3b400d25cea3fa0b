// Connects a model to a ShardedModel: the only file that touches autograd and module hooks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/nn/unit_base.h"
#include "capstan/nn/unit_tree.h"
#include "capstan/profile/recorder.h"
#include "capstan/shard/model_view.h"
#include "capstan/shard/options.h"

namespace torch::autograd {
struct Node;
}

namespace capstan::shard {

class ShardedModel;

// Units as `options` choose them among those marked with nn::Unit.
ModelView view_model(torch::nn::Module& model, const Options& options = {});

// Told of backwards that reach the model, whoever runs them.
class BackwardWatcher {
 public:
  virtual ~BackwardWatcher() = default;
  // One begins whose gradients are reduced.
  virtual void backward_begins() = 0;
};

// Told of the first thing in each pass that is not finite. Each is looked at, which waits for the
// device.
class FiniteWatcher {
 public:
  virtual ~FiniteWatcher() = default;
  virtual void output_not_finite(int boundary) = 0;
  virtual void gradient_not_finite(int param) = 0;
};

// Gradients of leaf parameters go to the core as soon as autograd has them; a unit is whole while
// its forward or backward runs.
// Threads: hooks run on the thread that runs forward or backward.
class Hooks final : public nn::UnitObserver {
 public:
  // `core`, the model and `watcher` (null: nobody) must outlive this. The destructor takes every
  // hook away again. cast_inputs: floating-point inputs of units become the dtype of the
  // parameters.
  Hooks(ShardedModel& core, const ModelView& view, bool cast_inputs = false,
        BackwardWatcher* watcher = nullptr);
  ~Hooks() override;
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  // C++ models report their uses here.
  void before_forward(nn::UnitBase& unit, std::span<at::Tensor* const> inputs) override;
  void after_forward(nn::UnitBase& unit, std::span<at::Tensor* const> outputs) override;
  void abandon_forward(nn::UnitBase& unit) noexcept override;

  // Front ends with modules of another kind report theirs by boundary; uses nest. Tensors may be
  // replaced, as by an nn::UnitObserver.
  void begin_forward(int boundary, std::span<at::Tensor* const> inputs);
  void end_forward(std::span<at::Tensor* const> outputs);
  void drop_forward() noexcept;  // instead of end_forward(): the module threw
  // A parameter of another module is read inside the innermost use that is open: its unit is whole
  // for that use too, in forward and backward. False where no use is open: nothing happens then.
  bool also_uses(int param);

  // Around a backward that our caller runs; sync as in Reducer. Every gradient is multiplied by
  // grad_factor.
  void begin_backward(bool sync, double grad_factor = 1);
  void end_backward();
  // Instead of end_backward(): it threw. What was whole for it is released.
  void abandon_backward() noexcept;

  // Around a backward that our caller runs to gradients of inputs alone: none of a parameter comes.
  // When it throws, abandon_backward() instead of the second.
  void begin_inputs() { in_backward_ = true; }
  void end_inputs() { leave_uses(); }
  // Whether `holds` for every node at which gradients of trainable parameters arrive.
  bool all_accumulators(const std::function<bool(torch::autograd::Node*)>& holds) const;

  // Parameters that hold a gradient which no backward of ours has taken; and taking those, between
  // begin_backward() and end_backward().
  std::vector<int> given_gradients() const;
  void take_gradients(const std::vector<int>& params);

  // A backward that reaches the model without begin_backward() (a plain loss.backward(), or one
  // graph through the models of two engines) is taken up when its first gradient comes and ends
  // with it, unless `refusal` says why not.
  struct ForeignBackward {
    bool sync = true;
    double grad_factor = 1;
    std::string refusal;  // what the error says to do instead; empty: allowed
  };
  // From here on; null: nobody looks. It must outlive the uses.
  void set_finite_watcher(FiniteWatcher* finite) { finite_ = finite; }
  void set_foreign_backward(ForeignBackward foreign) { foreign_ = std::move(foreign); }

 private:
  // One call of a unit in a forward that autograd records.
  struct Use {
    int boundary = 0;
    bool whole = false;       // begin_use() was called for its backward, end_use() not yet
    bool begun = false;       // begin_use() has ended, end_use() was not called yet
    bool gathers = false;     // its backward cannot run without us
    std::vector<int> others;  // units of parameters that it reads from other modules
    profile::Span span;       // from when its parameters are there to its end
  };

  bool gathers(int boundary) const;
  void begin_use(Use& use);
  void end_use(Use& use);
  profile::Span span_of(const Use& use, std::string_view name) const;
  void cast(std::span<at::Tensor* const> inputs) const;
  void hook_inputs(const std::shared_ptr<Use>& use, std::span<at::Tensor* const> inputs);
  void hook_outputs(const std::shared_ptr<Use>& use, std::span<at::Tensor* const> outputs);
  void enter_backward(const std::shared_ptr<Use>& use);
  void leave_backward(Use& use);
  void leave_uses();  // all that are open, and backward with them
  void watch(int param);
  void watch_renewed();
  void grad_arrived(int param);
  void take_up_foreign_backward();

  struct Alive {};
  struct GradHook;
  struct ForeignScope;

  ShardedModel& core_;
  BackwardWatcher* watcher_;
  FiniteWatcher* finite_ = nullptr;
  std::vector<at::Tensor> params_;
  std::vector<nn::UnitBase*> units_;
  std::vector<std::string> names_;                            // of boundaries
  std::unordered_map<const nn::UnitBase*, int> boundary_of_;  // looked up, never iterated
  std::vector<std::shared_ptr<Use>> open_forwards_;           // innermost last
  std::vector<std::shared_ptr<Use>> open_backwards_;          // whole now; closed at the end
  // By parameter; none for frozen ones. Autograd holds accumulators weakly; ours must live as long
  // as the hooks on them.
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> accumulators_;
  std::shared_ptr<Alive> alive_ = std::make_shared<Alive>();  // graphs may outlive us
  ForeignBackward foreign_;
  bool cast_inputs_;
  bool in_backward_ = false;
  double grad_factor_ = 1;    // of the backward that runs
  std::optional<int> graph_;  // that its gradients came from last
};

}  // namespace capstan::shard
