#include "capstan/engine/make_mesh.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/shard/policy.h"

namespace capstan::engine {
namespace {

// The first axis that the ranks left by those before it cannot form; null: all fit.
const char* misfit(const MeshOptions& mesh, int ranks) {
  const std::array axes = {std::pair("mesh.pipe", mesh.pipe),
                           std::pair("mesh.sequence", mesh.sequence),
                           std::pair("mesh.tensor", mesh.tensor)};
  for (const auto& [name, size] : axes) {
    if (size < 1 || ranks % size != 0) return name;
    ranks /= size;
  }
  return nullptr;
}

}  // namespace

bool keeps_near(const shard::Options& options, int ranks) {
  return policy_for(options).params == shard::Gather::per_use && options.near_ranks > 1 &&
         options.near_ranks < ranks;
}

layout::Mesh make_mesh(const Options& options, int ranks) {
  const MeshOptions& mesh = options.mesh;
  const int sharing = mesh.product();
  if (const char* const axis = misfit(mesh, ranks)) {
    throw ConfigError({.what = fmt::format(
                           "a mesh of {} (pipe) x {} (sequence) x {} (tensor) has no place for {}",
                           mesh.pipe, mesh.sequence, mesh.tensor, counted(ranks, "rank")),
                       .where = options.names(axis),
                       .fix = fmt::format("start a multiple of {}, or make these smaller",
                                          counted(std::max(1, sharing), "rank"))});
  }
  const int data = ranks / sharing;
  const bool near = keeps_near(options.shard, data);
  const int shards = near                            ? options.shard.near_ranks
                     : options.shard.shard_ranks > 0 ? options.shard.shard_ranks
                                                     : data;
  if (near && options.shard.shard_ranks > 0) {
    throw ConfigError({.what = "shard groups and a second copy of the parameters were both asked "
                               "for; each says where shards end",
                       .where = "shard groups",
                       .fix = "choose one of the two"});
  }
  if (shards > data || data % shards != 0) {
    throw ConfigError(
        {.what = fmt::format("{} do not form groups of {}",
                             counted(data, sharing > 1 ? "data-parallel rank" : "rank"), shards),
         .where = "shard groups",
         .fix = "use a group size that divides the number of ranks"});
  }
  return layout::Mesh({.pipe = mesh.pipe,
                       .replica = data / shards,
                       .shard = shards,
                       .sequence = mesh.sequence,
                       .tensor = mesh.tensor},
                      ranks);
}

}  // namespace capstan::engine
