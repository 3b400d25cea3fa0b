// Which ranks belong together: a grid of ranks with the axes pipe, data and tensor. Pure
// arithmetic.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace capstan::layout {

enum class Axis { pipe, data, tensor };

std::string_view to_string(Axis axis);

struct MeshSizes {
  int pipe = 1;
  int data = 1;
  int tensor = 1;
  bool operator==(const MeshSizes&) const = default;
};

// Where one rank stands.
struct MeshPlace {
  int pipe = 0;
  int data = 0;
  int tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

// Ranks are numbered with tensor running fastest and pipe slowest:
//
//   rank = (pipe * data_size + data) * tensor_size + tensor
//
// so that tensor-parallel ranks, which talk most, are neighbours on one machine.
// Threads: immutable once built; share freely.
class Mesh {
 public:
  // Throws ConfigError unless every size is positive and their product is world_size.
  Mesh(MeshSizes sizes, int world_size);

  const MeshSizes& sizes() const { return sizes_; }
  int size(Axis axis) const;
  int world_size() const { return sizes_.pipe * sizes_.data * sizes_.tensor; }

  MeshPlace place(int rank) const;  // requires 0 <= rank < world_size()
  int rank_at(const MeshPlace& place) const;

  // The ranks that differ from `rank` in `axis` only, itself among them, in the order of the axis.
  std::vector<int> line(Axis axis, int rank) const;
  // Every line along `axis`, ordered by its first rank: together all ranks, each once.
  std::vector<std::vector<int>> lines(Axis axis) const;

 private:
  std::int64_t stride(Axis axis) const;  // between neighbours on the axis

  MeshSizes sizes_;
};

}  // namespace capstan::layout
