// The store where the ranks of a run meet: rank 0 keeps it, or the launcher does.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "capstan/base/rank_env.h"

namespace capstan::comm {

// Waits until the store answers. Throws CommError when it does not in time, or when rank 0 cannot
// open it.
c10::intrusive_ptr<c10d::Store> connect_store(const RankEnv& env,
                                              std::chrono::milliseconds timeout);

}  // namespace capstan::comm
