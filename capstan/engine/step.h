// One optimizer step: the gradients are summed and checked, the parameters updated, and the loss
// scale, the schedule and the counters move on.
#pragma once

#include <optional>
#include <vector>

#include "capstan/engine/backward.h"
#include "capstan/engine/common.h"
#include "capstan/engine/early_step.h"
#include "capstan/engine/grad_gate.h"
#include "capstan/engine/rates.h"
#include "capstan/engine/saver.h"
#include "capstan/engine/step_trace.h"
#include "capstan/engine/step_types.h"
#include "capstan/optim/cpu/worker_pool.h"

namespace capstan::engine {

// Threads: one caller at a time.
// Ranks:   take() is collective.
class Step {
 public:
  // All of it must outlive this.
  struct Helpers {
    Backward& backward;
    EarlyStep& early;
    GradGate* gate;  // null where gradients are not in GPU memory
    Saver& saver;
    Rates& rates;
    optim::WorkerPool& workers;
    StepTrace* trace;  // null: no step is drawn
  };
  Step(const Common& common, const Helpers& with) : common_(common), with_(with) {}

  // After every micro-batch; see Engine::step().
  StepReport take(std::optional<bool> boundary);

  std::vector<double> learning_rates() const;  // of the next step, by parameter group
  void set_hyper_params(const std::vector<optim::HyperParams>& groups);

 private:
  std::int64_t samples() const;  // of the step that ends
  StepReport end_step();
  GradNorm check_and_apply(const StepReport& report, bool look);
  void apply(const StepReport& report, double factor, const optim::StepGate* gate = nullptr);

  Common common_;
  Helpers with_;
  bool as_guessed_ = false;  // the step was what would have been guessed
};

}  // namespace capstan::engine
