// Where a run stands: what a step moves on, a checkpoint keeps and a load brings back.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/engine/options.h"
#include "capstan/engine/run_log.h"
#include "capstan/precision/loss_scale.h"

namespace capstan::engine {

// What this step's gradients are multiplied by, and what is known of the backward that runs.
struct GradScale {
  double loss_scale = 1;         // that this step's backwards use
  double after_sum = 1;          // what is left of the division by the ranks
  std::optional<bool> boundary;  // whether a step follows it, where the caller said so

  // From the summed gradient to the averaged, unscaled one.
  double gradient_factor() const { return after_sum / loss_scale; }
};

struct RunState {
  Progress progress;
  precision::LossScaleState loss_scale;  // of the next backward
  // Applied steps before the first that the optimizer and the schedule count: they count from their
  // own beginning, which a load may leave where it was.
  std::int64_t optimizer_start = 0;
  std::int64_t schedule_start = 0;

  std::int64_t optimizer_steps() const { return progress.applied() - optimizer_start; }
  std::int64_t schedule_steps() const { return progress.applied() - schedule_start; }
  void set_optimizer_steps(std::int64_t steps) { optimizer_start = progress.applied() - steps; }

  // The optimizer and the schedule go on counting where they are.
  void set_progress(const Progress& other) {
    optimizer_start += other.applied() - progress.applied();
    schedule_start += other.applied() - progress.applied();
    progress = other;
  }

  // Whether the next micro-batch is the last one of its step, where nobody says so.
  bool next_ends_step(const BatchOptions& batch) const {
    return !batch.managed_accumulation ||
           (progress.micro_steps + 1) % batch.accumulation_steps == 0;
  }
};

}  // namespace capstan::engine
