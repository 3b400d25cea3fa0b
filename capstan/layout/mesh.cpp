#include "capstan/layout/mesh.h"

#include <utility>

#include "capstan/base/error.h"

namespace capstan::layout {
namespace {

constexpr Axes kOneReading = {Axis::replica, Axis::shard, Axis::sequence};
constexpr Axes kOtherReading = {Axis::expert_replica, Axis::expert};

// "2 (pipe) x 4 (shard)"; the number of ranks where that is 1.
std::string told(const Mesh& mesh) {
  std::string text;
  for (const Axis axis : kAxes) {
    if (!kGridAxes.has(axis) || mesh.size(axis) == 1) continue;
    if (!text.empty()) text += " x ";
    text += std::to_string(mesh.size(axis)) + " (" + std::string(to_string(axis)) + ")";
  }
  return text.empty() ? "1" : text;
}

// Their product, or 0 where one of them is not positive or no job is as large.
std::int64_t product_of(const Mesh& mesh) {
  std::int64_t product = 1;
  for (const Axis axis : kAxes) {
    if (!kGridAxes.has(axis)) continue;
    if (mesh.size(axis) < 1 || product > INT32_MAX) return 0;
    product *= mesh.size(axis);
  }
  return product;
}

}  // namespace

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::pipe:
      return "pipe";
    case Axis::replica:
      return "replica";
    case Axis::shard:
      return "shard";
    case Axis::sequence:
      return "sequence";
    case Axis::tensor:
      return "tensor";
    case Axis::expert_replica:
      return "expert_replica";
    case Axis::expert:
      return "expert";
  }
  return "";
}

std::string to_string(Axes axes) {
  std::string text;
  for (const Axis axis : kAxes) {
    if (!axes.has(axis)) continue;
    if (!text.empty()) text += " x ";
    text += to_string(axis);
  }
  return text;
}

Mesh::Mesh(MeshSizes sizes, int world_size) : sizes_(sizes), world_size_(world_size) {
  const std::int64_t product = product_of(*this);
  if (product != world_size || world_size < 1) {
    throw ConfigError({.what = told(*this) + (product > 0 ? " = " + std::to_string(product) : "") +
                               ", but there are " + std::to_string(world_size) + " ranks",
                       .where = "mesh",
                       .fix = "make every axis positive and their product the number of ranks"});
  }
  const int experts_over = size(kOneReading);
  if (sizes.expert < 1 || experts_over % sizes.expert != 0) {
    throw ConfigError({.what = std::to_string(sizes.expert) + " (expert) does not divide the " +
                               std::to_string(experts_over) +
                               " ranks of replica x shard x sequence",
                       .where = "mesh",
                       .fix = "use a divisor of that number"});
  }
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::pipe:
      return sizes_.pipe;
    case Axis::replica:
      return sizes_.replica;
    case Axis::shard:
      return sizes_.shard;
    case Axis::sequence:
      return sizes_.sequence;
    case Axis::tensor:
      return sizes_.tensor;
    case Axis::expert_replica:
      return sizes_.replica * sizes_.shard * sizes_.sequence / sizes_.expert;
    case Axis::expert:
      return sizes_.expert;
  }
  return 1;
}

int Mesh::size(Axes axes) const {
  int product = 1;
  for (const Axis axis : kAxes) {
    if (axes.has(axis)) product *= size(axis);
  }
  return product;
}

Axes Mesh::longer_than_one(Axes axes) const {
  for (const Axis axis : kAxes) {
    if (size(axis) == 1) axes = axes.without(axis);
  }
  return axes;
}

int Mesh::stride(Axis axis) const {
  switch (axis) {
    case Axis::pipe:
      return world_size_ / sizes_.pipe;
    case Axis::replica:
      return sizes_.shard * sizes_.sequence * sizes_.tensor;
    case Axis::shard:
      return sizes_.sequence * sizes_.tensor;
    case Axis::sequence:
    case Axis::expert:
      return sizes_.tensor;
    case Axis::tensor:
      return 1;
    case Axis::expert_replica:
      return sizes_.expert * sizes_.tensor;
  }
  return 1;
}

int Mesh::place(Axis axis, int rank) const { return rank / stride(axis) % size(axis); }

int Mesh::place(Axes axes, int rank) const {
  int number = 0;
  for (const Axis axis : kAxes) {
    if (axes.has(axis)) number = number * size(axis) + place(axis, rank);
  }
  return number;
}

std::vector<int> Mesh::group(Axes axes, int rank) const {
  if (!(axes & kOneReading).empty() && !(axes & kOtherReading).empty()) {
    throw InternalError({.what = "no group over " + to_string(axes) + ": two readings of one axis",
                         .where = "mesh"});
  }
  std::vector<int> ranks = {rank};
  for (const Axis axis : kAxes) {
    if (axes.has(axis)) ranks.front() -= place(axis, rank) * stride(axis);
  }
  // Outermost first, so that they ascend.
  for (const Axis axis : kAxes) {
    if (!axes.has(axis)) continue;
    std::vector<int> longer;
    longer.reserve(ranks.size() * static_cast<std::size_t>(size(axis)));
    for (const int first : ranks) {
      for (int i = 0; i < size(axis); ++i) longer.push_back(first + i * stride(axis));
    }
    ranks = std::move(longer);
  }
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(Axes axes) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (place(axes, rank) == 0) all.push_back(group(axes, rank));
  }
  return all;
}

}  // namespace capstan::layout
