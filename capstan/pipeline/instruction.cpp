#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

std::string_view to_string(Op op) {
  switch (op) {
    case Op::load:
      return "load";
    case Op::receive_input:
      return "receive_input";
    case Op::forward:
      return "forward";
    case Op::send_output:
      return "send_output";
    case Op::receive_gradient:
      return "receive_gradient";
    case Op::backward:
      return "backward";
    case Op::backward_inputs:
      return "backward_inputs";
    case Op::backward_weights:
      return "backward_weights";
    case Op::send_gradient:
      return "send_gradient";
    case Op::reduce:
      return "reduce";
    case Op::reduce_tied:
      return "reduce_tied";
    case Op::step:
      return "step";
  }
  return "";
}

std::string to_string(const Instruction& instruction) {
  std::string text(to_string(instruction.op));
  if (instruction.op < Op::reduce) text += " " + std::to_string(instruction.micro_batch);
  if (instruction.chunk > 0) text += " of chunk " + std::to_string(instruction.chunk);
  return text;
}

std::string to_string(const Transfer& transfer) {
  return std::string(transfer.gradient ? "gradient" : "output") + " of part " +
         std::to_string(transfer.part) + ", micro-batch " + std::to_string(transfer.micro_batch);
}

std::optional<Transfer> transfer_of(const Shape& shape, int stage, const Instruction& instruction) {
  const int part = shape.part(stage, instruction.chunk);
  const int micro_batch = instruction.micro_batch;
  switch (instruction.op) {
    case Op::send_output:
      return Transfer{.gradient = false, .part = part, .micro_batch = micro_batch};
    case Op::receive_input:
      return Transfer{.gradient = false, .part = part - 1, .micro_batch = micro_batch};
    case Op::send_gradient:
      return Transfer{.gradient = true, .part = part, .micro_batch = micro_batch};
    case Op::receive_gradient:
      return Transfer{.gradient = true, .part = part + 1, .micro_batch = micro_batch};
    default:
      return std::nullopt;
  }
}

int peer_of(const Shape& shape, int stage, const Instruction& instruction) {
  const bool ahead = instruction.op == Op::send_output || instruction.op == Op::receive_gradient;
  const int part = shape.part(stage, instruction.chunk) + (ahead ? 1 : -1);
  return part < 0 || part >= shape.parts() ? -1 : part % shape.stages;
}

}  // namespace capstan::pipeline
