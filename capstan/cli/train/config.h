// The configuration and the model of a training run, from its arguments; without libtorch, so that
// `capstan` can say what is wrong before a rank is started.
#pragma once

#include <cstdint>

#include "capstan/cli/train/arguments.h"
#include "capstan/config/resolve.h"
#include "capstan/models/gpt_options.h"

namespace capstan::cli::train {

// The sizes that were asked for, with the vocabulary still to come. Throws ConfigError when no
// model can have them.
models::GptOptions model_options(const ModelArguments& arguments, std::uint64_t seed);

// Tokens per sequence. Throws ConfigError when the model's context is shorter.
std::int64_t sequence_length(const Arguments& arguments);

// Throws ConfigError with all problems of the file at once.
config::Resolved training_config(const Arguments& arguments, int world_size);

}  // namespace capstan::cli::train
