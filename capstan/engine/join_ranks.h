// How an engine that was given no group joins the other ranks of its launcher.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include "capstan/comm/world.h"
#include "capstan/engine/options.h"

namespace capstan::engine {

// The backend that was asked for; else NCCL for several ranks with the model on a GPU, MPI for
// several on CPUs, none for one on a CPU. Unset: make_world() may choose, for one rank on a GPU.
// Throws ConfigError for several GPUs without NCCL: over MPI they would train, slowly.
std::optional<comm::BackendKind> backend_for(c10::Device device, int ranks, const Options& options,
                                             bool has_nccl);

// Collective. `device` is the model's.
std::unique_ptr<comm::World> join_ranks(c10::Device device, const Options& options,
                                        comm::StartNccl start_nccl);

}  // namespace capstan::engine
