// A pipeline's schedule as a value: what each stage does, one instruction after another.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::pipeline {

enum class Op {
  load,              // take a micro-batch: its inputs for the first part, its labels for the last
  receive_input,     // start to receive what the part before has sent
  forward,           // waits for the input
  send_output,       // start to send it to the part after
  receive_gradient,  // start to receive the gradient of the output
  backward,          // waits for it; the two below at once
  backward_inputs,   // waits for it; gradients of the input only
  backward_weights,  // gradients of the parameters; afterwards the activations are not needed
  send_gradient,     // start to send the input's gradient to the part before
  reduce,            // start to sum a chunk's gradients over the data axes
  reduce_tied,       // likewise those of weights that several stages share
  step,              // waits for all sums
};

std::string_view to_string(Op op);

struct Instruction {
  Op op = Op::step;
  int micro_batch = 0;  // 0 in reduce, reduce_tied and step
  int chunk = 0;        // 0 in reduce_tied and step
  auto operator<=>(const Instruction&) const = default;
};

// "forward 3", "send_output 3 of chunk 1"
std::string to_string(const Instruction& instruction);

// The model is cut into stages x chunks parts. Part p runs on stage p % stages as its chunk
// p / stages: with several chunks a micro-batch passes all stages as often.
struct Shape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;

  int parts() const { return stages * chunks; }
  int part(int stage, int chunk) const { return chunk * stages + stage; }
  bool operator==(const Shape&) const = default;
};

// Each stage issues its instructions in this order. Transfers are asynchronous: send and receive
// only start them, and whoever needs the result waits. The order of all transfers between two
// stages, in both directions, is the same on both sides, and even if each of them stopped its stage
// until the other side is there, none would wait for ever (check.h and simulate.h prove both).
// Better transports take the list with receives moved up (early_receives.h).
struct Schedule {
  Shape shape;
  bool training = true;                          // else forward only
  std::vector<std::vector<Instruction>> stages;  // one list per stage
};

// What travels between two parts; the same value on both sides.
struct Transfer {
  bool gradient = false;
  int part = 0;  // that sends
  int micro_batch = 0;
  auto operator<=>(const Transfer&) const = default;
};

// "output of part 1, micro-batch 3", "gradient of part 1, micro-batch 3"
std::string to_string(const Transfer& transfer);

// Nothing where the instruction is no transfer.
std::optional<Transfer> transfer_of(const Shape& shape, int stage, const Instruction& instruction);
// The stage at the other end. Requires an instruction that is a transfer; -1 if there is no part
// before the first or after the last.
int peer_of(const Shape& shape, int stage, const Instruction& instruction);

}  // namespace capstan::pipeline
