// A reduce-scatter in segments: while one arrives, the one before is added to the result, from the
// processor's cache. Private to comm/mpi.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/buffer_pool.h"
#include "capstan/comm/mpi/transfer_plan.h"

namespace capstan::comm {

// Owns:    room for a few segments of every peer, whatever the size of the tensors.
// Threads: made by the caller of the operation, then the MPI thread's.
class SegmentSum {
 public:
  // Everybody's `whole` is reduced to this rank's part, `mine`, in rank order. All ranks give the
  // same segment_bytes: their messages must match.
  struct Tensors {
    at::Tensor mine;
    at::Tensor whole;
    bool accumulate;
  };
  SegmentSum(Place place, Tensors tensors, std::int64_t segment_bytes,
             std::shared_ptr<BufferPool> pool);
  ~SegmentSum();

  // Messages of each segment between all pairs; receives carry their segment's number.
  TransferPlan plan() const;
  // Whether there is room for this segment.
  bool may_receive(int segment) const { return segment < summed_ + kSlots; }
  void received(int segment) { --missing_[segment]; }
  // Adds the segments that have come from everybody. True when there were any.
  bool advance();
  bool done() const { return summed_ == static_cast<int>(missing_.size()); }

 private:
  // Enough to keep a network busy while one is added.
  static constexpr int kSlots = 4;

  std::byte* slot(int segment, int peer) const;
  std::int64_t elems_of(int segment) const;
  void sum(int segment);

  const Place place_;
  const Tensors tensors_;
  const std::int64_t part_elems_;
  const std::int64_t segment_elems_;
  const std::shared_ptr<BufferPool> pool_;
  at::Tensor slots_;
  std::vector<int> missing_;  // by segment: peers whose message has not come
  std::vector<const void*> pieces_;
  int summed_ = 0;
};

}  // namespace capstan::comm
