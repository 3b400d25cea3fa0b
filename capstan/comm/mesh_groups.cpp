#include "capstan/comm/mesh_groups.h"

#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/comm/loopback/loopback.h"

namespace capstan::comm {
using layout::Axes;

MeshGroups::MeshGroups(const layout::Mesh& mesh, Group& all, GroupMaker* maker)
    : mesh_(mesh), all_(all), maker_(maker) {
  if (mesh.world_size() == all.size()) return;
  throw InternalError({.what = fmt::format("a mesh of {} ranks over a group of {}",
                                           mesh.world_size(), all.size())});
}

Group& MeshGroups::over(Axes axes) {
  const int size = mesh_.size(axes);
  if (size == all_.size()) return all_;
  const Axes key = mesh_.longer_than_one(axes);
  const auto found = made_.find(key);
  if (found != made_.end()) return found->second;
  if (size == 1) {
    Group alone(make_loopback(make_loopback_hub(1), 0),
                {.name = "one rank", .recorder = all_.recorder()});
    return made_.emplace(key, std::move(alone)).first->second;
  }
  const std::string name = to_string(key);
  if (maker_ == nullptr) {
    throw ConfigError({.what = fmt::format("a group over {} takes a part of the {} ranks, and "
                                           "nobody can make one",
                                           name, all_.size()),
                       .where = "mesh",
                       .fix = "hand in the world that the group comes from instead of the group "
                              "alone (Parts::group = world), or who else makes groups of its ranks "
                              "(Parts::group = {group, maker})"});
  }
  return made_.emplace(key, maker_->make_parts(mesh_.groups(axes), name)).first->second;
}

std::vector<AxesTraffic> MeshGroups::traffic() const {
  std::vector<AxesTraffic> traffic = {{mesh_.longer_than_one(layout::kGridAxes), all_.counters()}};
  for (const auto& [axes, group] : made_) traffic.push_back({axes, group.counters()});
  return traffic;
}

void MeshGroups::abort(std::string_view reason) {
  all_.abort(reason);
  for (auto& [axes, group] : made_) group.abort(reason);
}

}  // namespace capstan::comm
