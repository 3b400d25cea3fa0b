// What a rank of a training run finds out and sets before the model is made.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "capstan/base/rank_env.h"
#include "capstan/cli/train/arguments.h"

namespace capstan::cli::train {

// Who takes part: the ranks that were started, or each for itself under --no-communication.
RankEnv training_ranks(const Arguments& arguments, const RankEnv& started);

// For the whole process; before anything else uses a GPU.
void compute_deterministically();

// `wanted` is auto, cpu or cuda.
bool trains_on_gpus(const std::string& wanted);

// The GPU of this rank, or the CPU; also makes it the current one.
// Throws ConfigError when a GPU was asked for and there is none.
c10::Device choose_device(const std::string& wanted, const RankEnv& ranks);

}  // namespace capstan::cli::train
