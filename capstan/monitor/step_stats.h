// The figures of one optimizer step, for the screen, the monitors, the metrics file and the page.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace capstan::monitor {

// Milliseconds of the device; backward includes the wait for reductions, which is also told alone.
struct PhaseMilliseconds {
  double forward = 0;
  double backward = 0;
  double reduce = 0;
  double step = 0;
};

struct StepStats {
  std::int64_t step = 0;       // counted from 1
  std::int64_t max_steps = 0;  // 0: not known
  std::int64_t samples = 0;    // that the run has learned from so far, over all ranks
  double time_s = 0;           // when it ended: seconds since 1970
  // Mean over ranks and micro-batches; NaN where nobody told it.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double lr = 0;  // of the first group
  double loss_scale = 1;
  bool scales_loss = false;
  double grad_norm = 0;  // 0 where nobody asked
  bool skipped = false;
  std::int64_t skipped_steps = 0;               // so far
  std::optional<std::int64_t> sequence_tokens;  // with a curriculum: how long sequences may be
  std::optional<double> theta;                  // with layer drop: how often the last layer is kept
  // Speeds of all ranks together; 0: not known.
  double samples_per_s = 0;
  double tokens_per_s = 0;
  double flops_per_s = 0;         // the model's own work
  std::int64_t device_bytes = 0;  // this rank's largest use so far where the model lives
  std::int64_t host_bytes = 0;    // this rank's resident memory
  // What this rank's engine holds now, by kind: "parameters", "host optimizer", ...
  std::vector<std::pair<std::string, std::int64_t>> held_bytes;
  std::optional<double> gpu_use;  // share of the last moments in which the GPU was busy
  std::optional<PhaseMilliseconds> times;
};

// Seconds since 1970.
double now_s();

}  // namespace capstan::monitor
