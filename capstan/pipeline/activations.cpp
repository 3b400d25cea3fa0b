#include "capstan/pipeline/activations.h"

#include <algorithm>

namespace capstan::pipeline {

std::vector<int> peak_activations(const Schedule& schedule) {
  std::vector<int> peaks(schedule.stages.size(), 0);
  if (!schedule.training) return peaks;
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    int live = 0;
    for (const Instruction& instruction : schedule.stages[stage]) {
      if (instruction.op == Op::forward) ++live;
      if (instruction.op == Op::backward || instruction.op == Op::backward_weights) --live;
      peaks[stage] = std::max(peaks[stage], live);
    }
  }
  return peaks;
}

}  // namespace capstan::pipeline
