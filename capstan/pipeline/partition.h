// Which layers of a model each part of a pipeline gets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/pipeline/schedules.h"

namespace capstan::pipeline {

struct Layer {
  std::string type;
  std::int64_t params = 0;  // trainable
  // Measured, for one micro-batch:
  double seconds = 0;                 // of forward and backward
  std::int64_t activation_bytes = 0;  // saved by forward until backward
  // Measured, for the whole run:
  std::int64_t state_bytes = 0;  // parameters, gradients, optimizer state
};

// uniform     equal numbers of layers
// parameters  the largest number of parameters in a part is as small as it can be
// type        likewise of layers whose type matches `pattern`, a regular expression in any case
// profile     the slowest stage is as fast as it can be, with every stage within its memory
struct Method {
  enum class Kind { uniform, parameters, type, profile };
  Kind kind = Kind::parameters;
  std::string pattern;
  bool operator==(const Method&) const = default;
};

// "uniform", "parameters", "type:REGEX" or "profile", in any case. Throws ConfigError.
Method method_named(std::string_view text);

struct Target {
  Kind schedule = Kind::one_f_one_b;
  Shape shape;
  std::int64_t stage_bytes = 0;  // for `profile`: memory of one stage
};

// Where each part begins, and the end: parts + 1 numbers. With fewer layers than parts the last
// parts are empty. Throws ConfigError if no type matches; for `profile`, if there are fewer layers
// than parts or no cut fits into the stages, with the stage that does not fit and what would. With
// several chunks every chunk of a stage gets an equal share of its memory, so that a cut may be
// refused that just fits.
std::vector<std::int64_t> cut_layers(const Method& method, std::span<const Layer> layers,
                                     const Target& target);

// A row of blocks between embeddings and an output, from the costs of all three: with which block
// each part begins, and the end. The slowest part is as fast as it can be with a block in each.
// Throws ConfigError where there are fewer blocks than parts.
std::vector<std::int64_t> cut_blocks(std::span<const double> costs, int parts);

}  // namespace capstan::pipeline
