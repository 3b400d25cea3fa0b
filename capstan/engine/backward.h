// How a step's gradients come to be: backwards of ours, plain backwards of the program's, and
// gradients that it puts into its parameters instead of one.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/engine/common.h"
#include "capstan/engine/step_types.h"
#include "capstan/pipeline/split_backward.h"
#include "capstan/shard/hooks.h"

namespace capstan::engine {

// Owns:    whether backwards are reduced; sets Common::scale.
// Threads: one caller at a time.
// Ranks:   run() and take_given() are collective.
class Backward {
 public:
  // `hooks` and what `common` names must outlive this.
  Backward(const Common& common, shard::Hooks& hooks);

  // See Engine::backward().
  void run(const at::Tensor& loss, const BackwardOptions& how);
  void run(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
           const BackwardOptions& how);
  // Of a micro-batch that has no gradients on this rank, while it may have some on its peers: what
  // they sum after each backward is summed here too, as zeros.
  void run_nothing(const BackwardOptions& how) { differentiate({}, {}, how); }

  // A backward in halves: gradients of a stage's inputs, and later those of its parameters. Nothing
  // where halves would differ from run(): parameters are gathered when they are used, or the graph
  // does not come to all of them, or cannot be split.
  struct Half {
    pipeline::SplitBackward graph;
    double grad_factor = 1;  // of the gradients of parameters
  };
  std::optional<Half> half(const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& inputs) const;
  // `gradients`: of the outputs; undefined for a loss.
  std::vector<at::Tensor> run_inputs(Half& half, const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& gradients,
                                     const BackwardOptions& how);
  void run_weights(Half half, const BackwardOptions& how);

  // Of a loss, what the gradients that it sends on are still to be multiplied with: that part of
  // its scale that the loss's own dtype does not hold.
  double rest_of_scale(const at::Tensor& loss, const BackwardOptions& how) const;

  // Backwards that only accumulate on this rank, as under Engine::NoSync; +1 and -1 come in pairs.
  void change_no_sync(int by);
  // After Options::batch has changed: from the next backward on.
  void options_changed() { change_no_sync(0); }
  // With fp16: whether a plain loss.backward() may come that is not scaled. By default none may.
  void expect_plain(bool allowed);
  // The loss, in fp32 at least, for a plain backward of the result: times the loss scale, or as
  // much of that as the loss's own dtype holds; the gradients get the rest.
  at::Tensor scale(const at::Tensor& loss);

  // Before a step, which needs gradients: takes those that the program has put into its parameters
  // where there was no backward. When it throws, nothing has happened and the group lives.
  void take_given();

 private:
  // What a loss, or given gradients, are multiplied by.
  double factor_of(const BackwardOptions& how) const;
  void differentiate(const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& gradients, const BackwardOptions& how);
  // Around what adds to gradients of parameters; and around all that backward does.
  void reducing(double grad_factor, const std::function<void()>& body);
  void timed(const std::function<void()>& body);

  Common common_;
  shard::Hooks& hooks_;
  int no_sync_depth_ = 0;
  bool plain_allowed_ = false;  // although the loss needs its scale
  double plain_factor_ = 1;     // of its gradients: what the dtype of its loss does not hold
};

}  // namespace capstan::engine
