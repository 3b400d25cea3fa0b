// Which ranks belong together: a grid of ranks with named axes. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::layout {

// Outermost first: ranks that differ on a later axis are nearer to each other, because they talk
// more. Ranks on `replica` and `shard` see different data. The axes of experts are a second reading
// of the three before them: replica x shard x sequence = expert_replica x expert.
enum class Axis { pipe, replica, shard, sequence, expert_replica, expert, tensor };

inline constexpr std::array kAxes = {Axis::pipe,     Axis::replica,        Axis::shard,
                                     Axis::sequence, Axis::expert_replica, Axis::expert,
                                     Axis::tensor};

std::string_view to_string(Axis axis);

// A set of axes; it names groups: the ranks that differ from each other on these axes only.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(Axis axis) : bits_(bit(axis)) {}  // NOLINT(google-explicit-constructor)
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }

  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Axes without(Axis axis) const { return Axes(bits_ & ~bit(axis)); }
  constexpr auto operator<=>(const Axes&) const = default;
  friend constexpr Axes operator|(Axes a, Axes b) { return Axes(a.bits_ | b.bits_); }
  friend constexpr Axes operator&(Axes a, Axes b) { return Axes(a.bits_ & b.bits_); }

 private:
  explicit constexpr Axes(unsigned bits) : bits_(bits) {}
  static constexpr unsigned bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }

  unsigned bits_ = 0;
};

constexpr Axes kDataAxes = {Axis::replica, Axis::shard};
// Ranks on these have the same parameters between them.
constexpr Axes kPeerAxes = {Axis::replica, Axis::shard, Axis::sequence};
// Of the grid itself, without its second reading: a group over them holds every rank.
constexpr Axes kGridAxes = {Axis::pipe, Axis::replica, Axis::shard, Axis::sequence, Axis::tensor};

// In the order of the mesh: "replica x shard".
std::string to_string(Axes axes);

struct MeshSizes {
  int pipe = 1;
  int replica = 1;
  int shard = 1;
  int sequence = 1;
  int tensor = 1;
  int expert = 1;  // divides replica x shard x sequence
  bool operator==(const MeshSizes&) const = default;
};

//   rank = (((pipe * replicas + replica) * shards + shard) * sequences + sequence) * tensors +
//   tensor
// Threads: immutable once built; share freely.
class Mesh {
 public:
  // Throws ConfigError unless every size is positive, their product (but for `expert`) is
  // world_size, and `expert` divides what it is a reading of.
  Mesh(MeshSizes sizes, int world_size);

  const MeshSizes& sizes() const { return sizes_; }
  int world_size() const { return world_size_; }
  int size(Axis axis) const;
  int size(Axes axes) const;  // of the groups that the axes name
  // Those of `axes` that are longer than one: they name the same groups.
  Axes longer_than_one(Axes axes) const;

  // Where the rank stands on one axis; on several, its number in their group. Requires
  // 0 <= rank < world_size().
  int place(Axis axis, int rank) const;
  int place(Axes axes, int rank) const;

  // The ranks of the group that `rank` is in, ascending. Axes of both readings together throw
  // InternalError.
  std::vector<int> group(Axes axes, int rank) const;
  // Every such group, ordered by its first rank: together all ranks, each once.
  std::vector<std::vector<int>> groups(Axes axes) const;

 private:
  int stride(Axis axis) const;  // between neighbours on the axis

  MeshSizes sizes_;
  int world_size_;
};

}  // namespace capstan::layout
