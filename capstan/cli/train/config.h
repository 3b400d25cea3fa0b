// The configuration and the model of a training run, from its arguments; without libtorch, so that
// `capstan` can say what is wrong before a rank is started.
#pragma once

#include <cstdint>
#include <memory>

#include "capstan/cli/train/arguments.h"
#include "capstan/config/resolve.h"
#include "capstan/models/blueprint.h"

namespace capstan::cli::train {

// The model that was asked for, with the vocabulary still to come. Throws ConfigError when there is
// none of that name or no model can have these sizes.
std::shared_ptr<const models::Blueprint> model_blueprint(const ModelArguments& arguments,
                                                         std::uint64_t seed);

// Tokens per sequence. Throws ConfigError when the model's context is shorter.
std::int64_t sequence_length(const Arguments& arguments);

// What the ranks have in common.
struct Ranks {
  int count = 1;
  bool on_gpus = false;  // false: they compute on this machine's CPU
};

// The configuration that was asked for, else the default one; in both "auto" is filled in: bf16
// where the hardware computes in it, a learning rate for the model's width, the length of the run
// and of its warm-up. Throws ConfigError with all problems of the file at once.
config::Resolved training_config(const Arguments& arguments, const Ranks& ranks);

}  // namespace capstan::cli::train
