#include "capstan/layout/mesh.h"

#include <string>

#include "capstan/base/error.h"

namespace capstan::layout {

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::pipe:
      return "pipe";
    case Axis::data:
      return "data";
    case Axis::tensor:
      return "tensor";
  }
  return "";
}

Mesh::Mesh(MeshSizes sizes, int world_size) : sizes_(sizes) {
  const std::int64_t product = std::int64_t{sizes.pipe} * sizes.data * sizes.tensor;
  if (sizes.pipe < 1 || sizes.data < 1 || sizes.tensor < 1 || product != world_size) {
    throw ConfigError({.what = std::to_string(sizes.pipe) + " (pipe) x " +
                               std::to_string(sizes.data) + " (data) x " +
                               std::to_string(sizes.tensor) +
                               " (tensor) = " + std::to_string(product) + ", but there are " +
                               std::to_string(world_size) + " ranks",
                       .where = "mesh",
                       .fix = "make every axis positive and their product the number of ranks"});
  }
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::pipe:
      return sizes_.pipe;
    case Axis::data:
      return sizes_.data;
    case Axis::tensor:
      return sizes_.tensor;
  }
  return 1;
}

std::int64_t Mesh::stride(Axis axis) const {
  switch (axis) {
    case Axis::pipe:
      return std::int64_t{sizes_.data} * sizes_.tensor;
    case Axis::data:
      return sizes_.tensor;
    case Axis::tensor:
      return 1;
  }
  return 1;
}

MeshPlace Mesh::place(int rank) const {
  return {.pipe = rank / (sizes_.data * sizes_.tensor),
          .data = rank / sizes_.tensor % sizes_.data,
          .tensor = rank % sizes_.tensor};
}

int Mesh::rank_at(const MeshPlace& place) const {
  return (place.pipe * sizes_.data + place.data) * sizes_.tensor + place.tensor;
}

std::vector<int> Mesh::line(Axis axis, int rank) const {
  const auto step = static_cast<int>(stride(axis));
  const int first = rank - rank / step % size(axis) * step;
  std::vector<int> ranks(size(axis));
  for (int i = 0; i < size(axis); ++i) {
    ranks[i] = first + i * step;
  }
  return ranks;
}

std::vector<std::vector<int>> Mesh::lines(Axis axis) const {
  std::vector<std::vector<int>> all;
  const auto step = static_cast<int>(stride(axis));
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank / step % size(axis) == 0) {
      all.push_back(line(axis, rank));
    }
  }
  return all;
}

}  // namespace capstan::layout
