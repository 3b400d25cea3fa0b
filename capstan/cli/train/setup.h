// Everything a training run is made of, built from its arguments.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "capstan/base/log.h"
#include "capstan/base/rank_env.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/corpus.h"
#include "capstan/comm/world.h"
#include "capstan/config/resolve.h"
#include "capstan/models/gpt.h"

namespace capstan::cli::train {

// Who takes part: the ranks that were started, or each for itself under --no-communication.
RankEnv training_ranks(const Arguments& arguments, const RankEnv& started);

// Throws ConfigError with all problems of the file at once.
config::Resolved training_config(const Arguments& arguments, int world_size);

// What is written at the end of a run must be writable at its start. Throws IoError.
void check_places(const OutputArguments& output, const CheckpointArguments& checkpoint);

models::GptOptions model_options(const ModelArguments& arguments, std::uint64_t seed);

// For the whole process; before anything else uses a GPU.
void compute_deterministically();

// `wanted` is auto, cpu or cuda. The GPU of this rank, or the CPU; also makes it the current one.
// Throws ConfigError when a GPU was asked for and there is none.
c10::Device choose_device(const std::string& wanted, const RankEnv& ranks);

}  // namespace capstan::cli::train
