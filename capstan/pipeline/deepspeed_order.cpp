#include "capstan/pipeline/deepspeed_order.h"

#include <algorithm>

namespace capstan::pipeline {
namespace {

struct StepWork {
  bool forward = true;
  int micro_batch = 0;  // may be none of the step's
};

StepWork train_work(const Shape& shape, int stage, int step) {
  const bool even_step = step % 2 == 0;
  const bool even_stage = stage % 2 == 0;
  const int half = (step - (even_step ? 0 : 1)) / 2;
  if (even_step == even_stage) return {true, half - stage / 2};
  return {false, half - shape.stages + (stage + 1) / 2 + (even_stage ? 1 : 0)};
}

bool loads(const Shape& shape, int stage) { return stage == 0 || stage == shape.stages - 1; }

}  // namespace

std::vector<std::vector<Instruction>> deepspeed_train_steps(const Shape& shape, int stage) {
  const int count = 2 * (shape.micro_batches + shape.stages - 1);
  const bool has_previous = stage > 0;
  const bool has_next = stage + 1 < shape.stages;
  const auto exists = [&](int m) { return m >= 0 && m < shape.micro_batches; };
  std::vector<std::vector<Instruction>> steps(count);
  int before = -1;  // the micro-batch of the step before
  for (int step = 0; step < count; ++step) {
    std::vector<Instruction>& list = steps[step];
    const auto [forward, micro_batch] = train_work(shape, stage, step);
    const bool works = exists(micro_batch);
    if (forward) {
      if (exists(before) && has_previous) list.push_back({Op::send_gradient, before});
      if (works && has_previous) list.push_back({Op::receive_input, micro_batch});
    } else {
      if (works && has_next) list.push_back({Op::receive_gradient, micro_batch});
      if (exists(before) && has_next) list.push_back({Op::send_output, before});
    }
    if (works && forward && loads(shape, stage)) list.push_back({Op::load, micro_batch});
    if (works) list.push_back({forward ? Op::forward : Op::backward, micro_batch});
    before = micro_batch;
  }
  steps.back().insert(steps.back().end(), {{Op::reduce_tied}, {Op::reduce}, {Op::step}});
  return steps;
}

std::vector<std::vector<Instruction>> deepspeed_inference_steps(const Shape& shape, int stage) {
  std::vector<std::vector<Instruction>> steps(shape.micro_batches + shape.stages - 1);
  const auto exists = [&](int m) { return m >= 0 && m < shape.micro_batches; };
  for (int step = 0; step < std::ssize(steps); ++step) {
    std::vector<Instruction>& list = steps[step];
    const int micro_batch = step - stage;
    const bool works = exists(micro_batch);
    const bool sends = exists(micro_batch - 1) && stage + 1 < shape.stages;
    const bool receives = works && stage > 0;
    if (works && loads(shape, stage)) list.push_back({Op::load, micro_batch});
    // Even stages send first, odd ones receive first: none waits for ever.
    if (sends && stage % 2 == 0) list.push_back({Op::send_output, micro_batch - 1});
    if (receives) list.push_back({Op::receive_input, micro_batch});
    if (sends && stage % 2 != 0) list.push_back({Op::send_output, micro_batch - 1});
    if (works) list.push_back({Op::forward, micro_batch});
  }
  return steps;
}

int deepspeed_train_buffers(const Shape& shape, int stage) {
  return std::max(2, std::min(shape.stages - stage, shape.micro_batches));
}

}  // namespace capstan::pipeline
