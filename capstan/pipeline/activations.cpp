#include "capstan/pipeline/activations.h"

#include <algorithm>

namespace capstan::pipeline {

namespace {

int change(Op op) {
  if (op == Op::forward) return 1;
  return op == Op::backward || op == Op::backward_weights ? -1 : 0;
}

}  // namespace

std::vector<int> peak_activations(const Schedule& schedule) {
  std::vector<int> peaks(schedule.stages.size(), 0);
  if (!schedule.training) return peaks;
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    int live = 0;
    for (const Instruction& instruction : schedule.stages[stage]) {
      live += change(instruction.op);
      peaks[stage] = std::max(peaks[stage], live);
    }
  }
  return peaks;
}

std::vector<int> peak_activations_by_part(const Schedule& schedule) {
  std::vector<int> peaks(schedule.shape.parts(), 0);
  if (!schedule.training) return peaks;
  std::vector<int> live = peaks;
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    for (const Instruction& instruction : schedule.stages[stage]) {
      const int part = schedule.shape.part(stage, instruction.chunk);
      live[part] += change(instruction.op);
      peaks[part] = std::max(peaks[part], live[part]);
    }
  }
  return peaks;
}

}  // namespace capstan::pipeline
