// One optimizer step: the gradients are summed and checked, the parameters updated, and the loss
// scale, the schedule and the counters move on.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "capstan/engine/backward.h"
#include "capstan/engine/common.h"
#include "capstan/engine/early_choice.h"
#include "capstan/engine/grad_gate.h"
#include "capstan/engine/saver.h"
#include "capstan/engine/step_types.h"
#include "capstan/optim/cpu/worker_pool.h"
#include "capstan/schedule/schedule.h"

namespace capstan::engine {

// The learning rate of each parameter group, none where the optimizer knows its own, and what moves
// them.
struct RateSource {
  std::vector<double> base;  // by group
  std::optional<schedule::Schedule> schedule;
};

// Owns:    the schedule, and what is guessed of a step before its gradients are known.
// Threads: one caller at a time.
// Ranks:   take() is collective.
class Step {
 public:
  // What `common` names and the others must outlive this.
  Step(const Common& common, Backward& backward, Saver& saver, optim::WorkerPool& workers,
       RateSource rates);
  ~Step();  // updates that run are finished first
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // After every micro-batch; see Engine::step().
  StepReport take(std::optional<bool> boundary);

  std::vector<double> learning_rates() const;  // of the next step, by parameter group
  void set_hyper_params(const std::vector<optim::HyperParams>& groups);

 private:
  StepReport end_step();
  GradNorm check_and_apply(const StepReport& report, bool look);
  void apply(const StepReport& report, double factor, const optim::StepGate* gate = nullptr);
  // Updates in backward.
  UpdateScalars guess() const;
  void open_early();
  void early_step_ended();

  Common common_;
  Backward& backward_;
  Saver& saver_;
  optim::WorkerPool& workers_;
  RateSource rates_;
  std::unique_ptr<GradGate> gate_;  // only where gradients are in GPU memory
  const bool updates_early_;
  EarlyChoice early_choice_;
  std::optional<UpdateScalars> guess_;  // what units are updated with in this backward
  bool guessed_ = false;                // the step was what would have been guessed
  std::chrono::steady_clock::time_point last_step_ = std::chrono::steady_clock::now();
};

}  // namespace capstan::engine
