// How micro-batches go through the stages of a pipeline.
#pragma once

namespace capstan::pipeline {

// With F, B and W the times of a forward, a backward for inputs and one for weights of one stage,
// P stages, M micro-batches, v chunks: how long a stage does nothing in a step, and how many
// micro-batches' activations it holds at most.
//
//   name         idle                     activations on stage s
//   gpipe        (P-1)(F+B+W)             M            all forwards, then all backwards
//   1f1b         (P-1)(F+B+W)             P-s          one forward, one backward, in turns
//   interleaved  (P-1)(F+B+W)/v           more: on stage 0 P + (P-1)/v; M is a multiple of P
//   zb-h1        (P-1)(F+B-W)             P            backward in halves; W fills the gaps
//   deepspeed    (P-1)(F+B+W)             P-s          1f1b in DeepSpeed's order of transfers
//   inference    (P-1)F                   none         forwards only
enum class Kind { gpipe, one_f_one_b, interleaved, zb_h1, deepspeed, inference };

struct Options {
  Kind schedule = Kind::one_f_one_b;
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::pipeline
