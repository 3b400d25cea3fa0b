#include "capstan/comm/mesh_groups.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
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
  return made_.emplace(key, make(mesh_.groups(axes), to_string(key))).first->second;
}

Group MeshGroups::make(const std::vector<std::vector<int>>& parts, const std::string& name) {
  if (maker_ != nullptr) return maker_->make_parts(parts, name);
  throw ConfigError({.what = fmt::format("a group over {} takes a part of the {} ranks, and "
                                         "nobody can make one",
                                         name, all_.size()),
                     .where = "mesh",
                     .fix = "hand in the world that the group comes from instead of the group "
                            "alone (Parts::group = world), or who else makes groups of its ranks "
                            "(Parts::group = {group, maker})"});
}

Group& MeshGroups::over_stages(const std::vector<int>& stages) {
  if (std::ssize(stages) == mesh_.size(layout::Axis::pipe)) return over(layout::Axis::pipe);
  const auto found = of_stages_.find(stages);
  if (found != of_stages_.end()) return found->second;
  std::vector<std::vector<int>> parts;
  for (const std::vector<int>& pipeline : mesh_.groups(layout::Axis::pipe)) {
    std::vector<int> inside;
    std::vector<int> outside;
    for (int stage = 0; stage < std::ssize(pipeline); ++stage) {
      const bool in = std::ranges::binary_search(stages, stage);
      (in ? inside : outside).push_back(pipeline[static_cast<std::size_t>(stage)]);
    }
    parts.push_back(std::move(inside));
    parts.push_back(std::move(outside));
  }
  Group group = make(parts, fmt::format("stages {}", fmt::join(stages, ", ")));
  return of_stages_.emplace(stages, std::move(group)).first->second;
}

std::vector<AxesTraffic> MeshGroups::traffic() const {
  std::vector<AxesTraffic> traffic = {{mesh_.longer_than_one(layout::kGridAxes), all_.counters()}};
  for (const auto& [axes, group] : made_) traffic.push_back({axes, group.counters()});
  return traffic;
}

void MeshGroups::abort(std::string_view reason) {
  all_.abort(reason);
  for (auto& [axes, group] : made_) group.abort(reason);
  for (auto& [stages, group] : of_stages_) group.abort(reason);
}

}  // namespace capstan::comm
