#include "capstan/pipeline/executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/device/error_text.h"
#include "capstan/pipeline/early_receives.h"

namespace capstan::pipeline {
namespace {

// Forwards and backwards by which receives are started early: a description arrives during the
// first, the tensors during the second.
constexpr int kAhead = 2;

// As a leaf of a graph of its own, in the same memory.
at::Tensor as_leaf(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor leaf = tensor.detach();
  if (tensor.requires_grad()) leaf.set_requires_grad(true);
  return leaf;
}

Tensors as_leaves(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors) leaves.push_back(as_leaf(tensor));
  return leaves;
}

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

void check_loss(const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return;
  throw ConfigError({.what = "the loss must have one element",
                     .where = "pipeline::Stage::loss",
                     .fix = "reduce it with mean() or sum()"});
}

}  // namespace

Executor::Executor(Schedule schedule, comm::Group& group, Stage& stage, c10::Device device)
    : schedule_(with_early_receives(schedule, kAhead)),
      group_(group),
      stage_(stage),
      stage_number_(group.rank()),
      device_(device) {
  if (schedule_.shape.stages == group.size()) return;
  throw ConfigError({.what = fmt::format("a schedule of {} stages over a group of {} ranks",
                                         schedule_.shape.stages, group.size()),
                     .where = fmt::format("group '{}'", group.name()),
                     .fix = "make the schedule for as many stages as the group has ranks"});
}

Tensors Executor::run() {
  const at::AutoGradMode grad_mode(schedule_.training);
  slots_.clear();
  losses_.clear();
  for (int chunk = 0; chunk < schedule_.shape.chunks; ++chunk) {
    backwards_left_[chunk] = schedule_.shape.micro_batches;
  }
  const Instruction* now = nullptr;
  try {
    for (const Instruction& instruction : schedule_.stages[stage_number_]) {
      now = &instruction;
      execute(instruction);
      for (auto& [peer, channel] : channels_) channel.progress();
    }
    for (auto& [peer, channel] : channels_) channel.finish_sends();
  } catch (const std::exception& error) {
    const std::string where =
        fmt::format("stage {} of {}, {}", stage_number_, schedule_.shape.stages, to_string(*now));
    const std::string what = device::reason_of(error);
    group_.abort(fmt::format("{}: {}", where, what));
    stage_.failed(fmt::format("{}: {}", where, what));
    std::throw_with_nested(
        CommError({.what = what,
                   .where = where,
                   .fix = "see to the error of the stage that failed first, then restart all"}));
  }
  slots_.clear();
  return std::exchange(losses_, {});
}

void Executor::execute(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::load:
      return load(instruction);
    case Op::forward:
      return forward(instruction);
    case Op::backward:
    case Op::backward_inputs:
    case Op::backward_weights:
      return backward(instruction);
    case Op::receive_input:
    case Op::receive_gradient:
      return channel(instruction)
          .receive(*transfer_of(schedule_.shape, stage_number_, instruction));
    case Op::send_output:
    case Op::send_gradient: {
      Slot& of = slot(instruction);
      const bool output = instruction.op == Op::send_output;
      channel(instruction)
          .send(*transfer_of(schedule_.shape, stage_number_, instruction),
                output ? of.outputs : of.input_gradients);
      if (!output) of.input_gradients.clear();
      if (!schedule_.training) of.outputs.clear();
      return;
    }
    case Op::reduce:
      return stage_.reduce(instruction.chunk);
    case Op::reduce_tied:
      return;  // with the step, where an engine sums what stages share
    case Op::step:
      return stage_.step();
  }
}

void Executor::load(const Instruction& instruction) {
  Slot& of = slot(instruction);
  if (part(instruction) == 0) of.inputs = stage_.inputs(instruction.micro_batch);
  if (is_last(instruction)) of.labels = stage_.labels(instruction.micro_batch);
}

void Executor::forward(const Instruction& instruction) {
  Slot& of = slot(instruction);
  if (part(instruction) > 0) {
    of.inputs = take({Op::receive_input, instruction.micro_batch, instruction.chunk});
  }
  of.outputs = stage_.forward(instruction.chunk, of.inputs);
  if (is_last(instruction)) {
    const at::Tensor loss = stage_.loss(of.outputs, of.labels);
    check_loss(loss);
    losses_.push_back(loss.detach());
    of.outputs = {loss};
    of.labels.clear();
  }
  if (!schedule_.training) of.inputs.clear();
}

Stage::Differential Executor::differential_of(const Instruction& instruction) {
  Slot& of = slot(instruction);
  if (is_last(instruction)) return {.outputs = std::move(of.outputs)};
  const Instruction receive = {Op::receive_gradient, instruction.micro_batch, instruction.chunk};
  const Tensors gradients = take(receive);
  // What the other stage has differentiated, it has received.
  const Instruction send = {Op::send_output, instruction.micro_batch, instruction.chunk};
  if (peer_of(schedule_.shape, stage_number_, send) != stage_number_) {
    channel(send).finish_send(*transfer_of(schedule_.shape, stage_number_, send));
  }
  Stage::Differential result;
  for (std::size_t i = 0; i < of.outputs.size(); ++i) {
    if (!gradients.at(i).defined()) continue;
    result.outputs.push_back(of.outputs[i]);
    result.gradients.push_back(gradients[i]);
  }
  of.outputs.clear();
  return result;
}

void Executor::backward(const Instruction& instruction) {
  Slot& of = slot(instruction);
  if (instruction.op != Op::backward_weights) of.differential = differential_of(instruction);
  of.differential.last = backwards_left_[instruction.chunk] == 1;
  const auto gradient_of = [](const at::Tensor& input) {
    return needs_gradient(input) ? input.grad() : at::Tensor();
  };
  if (instruction.op == Op::backward) {
    stage_.backward(instruction.chunk, of.differential);
    of.input_gradients.clear();
    for (const at::Tensor& input : of.inputs) of.input_gradients.push_back(gradient_of(input));
    scale_by_rest(of);
  } else if (instruction.op == Op::backward_inputs) {
    of.input_gradients = stage_.backward_inputs(instruction.chunk, of.differential, of.inputs);
    scale_by_rest(of);
    return;  // the graph is needed once more
  } else {
    stage_.backward_weights(instruction.chunk, of.differential);
  }
  --backwards_left_[instruction.chunk];
  of.inputs.clear();
  of.differential = {};
}

void Executor::scale_by_rest(Slot& of) {
  const double rest = of.differential.of_loss() ? stage_.rest_of_scale() : 1;
  if (rest == 1) return;
  for (at::Tensor& gradient : of.input_gradients) {
    if (gradient.defined()) gradient = gradient * rest;
  }
}

Tensors Executor::take(const Instruction& receive) {
  const int peer = peer_of(schedule_.shape, stage_number_, receive);
  if (peer != stage_number_) {
    return channels_.at(peer).take(*transfer_of(schedule_.shape, stage_number_, receive));
  }
  const bool gradient = receive.op == Op::receive_gradient;
  Slot& other =
      slot({.micro_batch = receive.micro_batch, .chunk = receive.chunk + (gradient ? 1 : -1)});
  return gradient ? std::move(other.input_gradients) : as_leaves(other.outputs);
}

Channel& Executor::channel(const Instruction& transfer) {
  const int peer = peer_of(schedule_.shape, stage_number_, transfer);
  return channels_.try_emplace(peer, group_, peer, device_).first->second;
}

}  // namespace capstan::pipeline
