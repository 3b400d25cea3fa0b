// How much of its device and its host the engine may fill.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/comm/group.h"
#include "capstan/shard/model_view.h"
#include "capstan/store/options.h"

namespace capstan::engine {

// The least over ranks, so that all place alike: what the options allow, else what is free and what
// the model's parameters hold already; less what activations need. Nothing for a model in CPU
// memory of which the options say nothing. Collective.
std::optional<std::int64_t> device_room(const shard::ModelView& view, const store::Options& options,
                                        comm::Group& group);

struct HostRoom {
  std::int64_t available_bytes = 0;
  int ranks = 1;                // of the group that share it
  std::int64_t need_bytes = 0;  // of all these together
};
// Nothing where it cannot be told. Collective; `device` is where collectives work, and `need_bytes`
// what this rank will take.
std::optional<HostRoom> host_room(comm::Group& group, c10::Device device, std::int64_t need_bytes);

}  // namespace capstan::engine
