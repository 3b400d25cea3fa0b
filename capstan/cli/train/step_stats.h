// The figures of one optimizer step, for the screen, the metrics file and the curve.
#pragma once

#include <cstdint>
#include <optional>

namespace capstan::cli::train {

struct StepStats {
  std::int64_t step = 0;  // counted from 1
  std::int64_t max_steps = 0;
  double loss = 0;  // mean over ranks and micro-batches
  double lr = 0;
  double loss_scale = 1;
  double grad_norm = 0;
  bool skipped = false;
  double tokens_per_s = 0;        // all ranks together
  double flops_per_s = 0;         // all ranks together, the model's own work
  std::int64_t device_bytes = 0;  // this rank's largest use so far where the model lives
  std::int64_t host_bytes = 0;    // this rank's resident memory
  std::optional<double> gpu_use;  // share of the last moments in which the GPU was busy
};

}  // namespace capstan::cli::train
