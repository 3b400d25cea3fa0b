// Units are updated in backward by what the step will probably be: this guesses it, and lets the
// step decide what becomes of that.
#pragma once

#include <chrono>
#include <optional>

#include "capstan/engine/common.h"
#include "capstan/engine/early_choice.h"
#include "capstan/engine/rates.h"
#include "capstan/shard/hooks.h"

namespace capstan::engine {

// Owns:    the guess.
// Threads: one caller at a time, beside the queue of updates.
class EarlyStep final : public shard::BackwardWatcher {
 public:
  // What `common` names and `rates` must outlive this.
  EarlyStep(const Common& common, const Rates& rates) : common_(common), rates_(rates) {}
  ~EarlyStep() override;  // updates that run are finished first
  EarlyStep(const EarlyStep&) = delete;
  EarlyStep& operator=(const EarlyStep&) = delete;

  // In the last backward of a step: units whose gradients are complete are updated from now on.
  void backward_begins() override;
  // The step is this one: what was made for another one is dropped. Before the update.
  void decide(const UpdateScalars& step);
  // `as_guessed`: the step was what would have been guessed.
  void step_ended(bool as_guessed);

 private:
  bool possible() const;
  UpdateScalars guess() const;

  Common common_;
  const Rates& rates_;
  EarlyChoice choice_;
  std::optional<UpdateScalars> guess_;  // what units are updated with in this backward
  std::chrono::steady_clock::time_point last_step_ = std::chrono::steady_clock::now();
};

}  // namespace capstan::engine
