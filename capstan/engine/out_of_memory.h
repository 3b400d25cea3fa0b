// What to try next when memory is out: one rung of the ladder from fast to frugal.
#pragma once

#include <exception>
#include <string>

#include "capstan/engine/options.h"

namespace capstan::engine {

// The next step down from these options, in the order users know: activation checkpointing, stage
// 2, stage 3, smaller limits, a smaller micro-batch, more ranks.
std::string next_saving(const Options& options);

// libtorch's allocators and the standard library report it in different ways.
bool is_out_of_memory(const std::exception& error);

}  // namespace capstan::engine
