// DeepSpeed's own schedules: one forward or one backward per step of a clock that all stages share.
#pragma once

#include <vector>

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// What the stage does in each step; a step may be empty. One chunk only. In training stages of even
// and odd number take turns with forward and backward, and send what the step before has made.
std::vector<std::vector<Instruction>> deepspeed_train_steps(const Shape& shape, int stage);
std::vector<std::vector<Instruction>> deepspeed_inference_steps(const Shape& shape, int stage);

// How many micro-batches' tensors the stage keeps; micro-batch i is in buffer i % buffers.
int deepspeed_train_buffers(const Shape& shape, int stage);
inline constexpr int kDeepspeedInferenceBuffers = 2;

}  // namespace capstan::pipeline
