// The schedules that exist, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/pipeline/instruction.h"

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

std::string_view to_string(Kind kind);
std::vector<std::string> kind_names();
// Throws ConfigError with the nearest name if there is none like that.
Kind kind_named(std::string_view name);

// Throws ConfigError if the shape is not positive or not one that the kind can have: chunks are for
// `interleaved` and `inference`; with several, `interleaved` takes micro-batches in groups of as
// many as there are stages.
Schedule make_schedule(Kind kind, const Shape& shape);

}  // namespace capstan::pipeline
