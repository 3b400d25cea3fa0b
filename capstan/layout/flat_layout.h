// Where each parameter of one unit sits in the unit's flat buffer, and which
// part of that buffer each rank owns. Pure arithmetic: no tensors, no I/O.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace capstan::layout {

// Half-open range [begin, end) of elements in a flat buffer.
struct ElemRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const ElemRange&) const = default;
};

// What `a` and `b` have in common; empty (begin == end) where they do not meet.
ElemRange intersect(ElemRange a, ElemRange b);

// The part of one slot that lies in one rank's shard.
struct SlotPiece {
  int slot = 0;
  ElemRange in_slot;   // elements of the parameter
  ElemRange in_shard;  // elements of the shard
  bool operator==(const SlotPiece&) const = default;
};

//   | slot 0 |pad| slot 1    |pad| slot 2 |   padding   |
//   |<-- shard 0 -->|<-- shard 1 -->|<-- shard 2 -->|
// Invariants:
//  - slots are in parameter order and each starts on a multiple of align_elems;
//  - padded_elems() is a multiple of world_size, so every rank owns equally many
//    elements and no collective has a remainder;
//  - shards start on a multiple of align_elems too, but for a buffer of one slot,
//    whose shards are as short as they can be: ceil(numel / world_size).
// Threads: immutable once built; share freely.
class FlatLayout {
 public:
  // numels[i] is the element count of parameter i; zero is allowed. Throws ConfigError when a count
  // is negative, or when world_size or align_elems is not positive.
  FlatLayout(std::span<const std::int64_t> numels, int world_size, std::int64_t align_elems);

  std::span<const ElemRange> slots() const { return slots_; }
  int world_size() const { return world_size_; }
  std::int64_t shard_elems() const { return shard_elems_; }
  std::int64_t padded_elems() const { return shard_elems_ * world_size_; }
  ElemRange shard(int rank) const;  // requires 0 <= rank < world_size

  // The pieces of slots that `rank` owns, in order; empty slots have none.
  std::vector<SlotPiece> pieces(int rank) const;

 private:
  std::vector<ElemRange> slots_;
  std::int64_t shard_elems_ = 0;
  int world_size_ = 1;
};

}  // namespace capstan::layout
