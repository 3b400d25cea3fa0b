// From options to what the parts of an engine are given. Pure, but for the buffers of a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/engine/options.h"
#include "capstan/engine/room.h"
#include "capstan/engine/sharding.h"
#include "capstan/shard/hooks.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// Throws one ConfigError that lists every option this engine cannot work with.
void check(const Options& options, bool has_optimizer_factory);

shard::Plan make_plan(const shard::ModelView& view, const Options& options,
                      const layout::Mesh& mesh);
// Which of the optimizer's states has this name, e.g. "exp_avg". Throws ConfigError for none.
int moment_index(const shard::StateSettings& states, std::string_view name);

// Casts floating-point buffers as the options say; rank 0's become everybody's. Collective.
void prepare_buffers(const std::vector<at::Tensor>& buffers, const precision::Options& options,
                     comm::Group& group);

// Throws ConfigError when a host has too little memory for what `settings` place there.
void check_host_memory(const store::MemoryUse& mine, const shard::Settings& settings,
                       const HostRoom& room);

// Mesh, dtypes and memory as a table.
std::string describe_run(const Options& options, const shard::Plan& plan,
                         const shard::Settings& settings, const layout::Mesh& mesh);

}  // namespace capstan::engine
