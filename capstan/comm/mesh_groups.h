// The groups of a mesh that this rank is in.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/comm/group_maker.h"
#include "capstan/layout/mesh.h"

namespace capstan::comm {

// What went over some axes of the mesh.
struct AxesTraffic {
  layout::Axes axes;
  Counters counters;
};

// Owns:    the groups it makes; they live as long as it does.
// Threads: one at a time; abort() from any.
// Ranks:   every rank of the mesh asks for groups in the same order.
class MeshGroups {
 public:
  // `all` holds the mesh's ranks in their order. `maker` makes groups of some of them; null where
  // nobody can. Both must outlive this.
  MeshGroups(const layout::Mesh& mesh, Group& all, GroupMaker* maker);

  const layout::Mesh& mesh() const { return mesh_; }
  Group& all() const { return all_; }
  int place(layout::Axes axes) const { return mesh_.place(axes, all_.rank()); }

  // Made when first asked for. Axes of length one change nothing: a group of all ranks is all().
  // Throws ConfigError where it takes a maker and there is none.
  Group& over(layout::Axes axes);

  // The ranks of these stages of a pipeline that differ from each other in nothing else; for a rank
  // of another stage, those of the remaining ones. Requires ascending stages.
  Group& over_stages(const std::vector<int>& stages);

  // Of every group over axes, that of all ranks first.
  std::vector<AxesTraffic> traffic() const;
  // Group::abort() of every one.
  void abort(std::string_view reason);

 private:
  Group make(const std::vector<std::vector<int>>& parts, const std::string& name);

  layout::Mesh mesh_;
  Group& all_;
  GroupMaker* maker_;
  std::map<layout::Axes, Group> made_;  // by the axes that are longer than one
  std::map<std::vector<int>, Group> of_stages_;
};

}  // namespace capstan::comm
