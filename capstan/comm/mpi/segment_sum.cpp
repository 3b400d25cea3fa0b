#include "capstan/comm/mpi/segment_sum.h"

#include <algorithm>

#include "capstan/comm/rank_sum.h"

namespace capstan::comm {

SegmentSum::SegmentSum(Place place, Tensors tensors, std::int64_t segment_bytes,
                       std::shared_ptr<BufferPool> pool)
    : place_(place),
      tensors_(std::move(tensors)),
      part_elems_(tensors_.mine.numel()),
      segment_elems_(std::max<std::int64_t>(
          1, std::min(part_elems_,
                      segment_bytes / static_cast<std::int64_t>(tensors_.whole.element_size())))),
      pool_(std::move(pool)),
      missing_((part_elems_ + segment_elems_ - 1) / segment_elems_, place.size - 1),
      pieces_(place.size) {
  const auto used = std::min<std::int64_t>(kSlots, static_cast<std::int64_t>(missing_.size()));
  slots_ = pool_->take(tensors_.whole, used * place.size * segment_elems_);
}

SegmentSum::~SegmentSum() { pool_->give_back(std::move(slots_)); }

std::byte* SegmentSum::slot(int segment, int peer) const {
  const std::int64_t index = std::int64_t{segment % kSlots} * place_.size + peer;
  return static_cast<std::byte*>(slots_.mutable_data_ptr()) +
         index * segment_elems_ * static_cast<std::int64_t>(slots_.element_size());
}

std::int64_t SegmentSum::elems_of(int segment) const {
  return std::min(segment_elems_, part_elems_ - segment * segment_elems_);
}

TransferPlan SegmentSum::plan() const {
  TransferPlan plan;
  const auto elem_bytes = static_cast<std::int64_t>(tensors_.whole.element_size());
  auto* const whole = static_cast<std::byte*>(tensors_.whole.mutable_data_ptr());
  plan.transfers.reserve(2 * missing_.size() * (place_.size - 1));
  for (int segment = 0; segment < static_cast<int>(missing_.size()); ++segment) {
    const std::int64_t bytes = elems_of(segment) * elem_bytes;
    for (int step = 1; step < place_.size; ++step) {
      const int from = (place_.rank - step + place_.size) % place_.size;
      const int to = (place_.rank + step) % place_.size;
      const std::int64_t offset = to * part_elems_ + segment * segment_elems_;
      plan.transfers.push_back({Direction::recv, from, 0, slot(segment, from), bytes, segment});
      plan.transfers.push_back({Direction::send, to, 0, whole + offset * elem_bytes, bytes});
    }
  }
  return plan;
}

bool SegmentSum::advance() {
  const int before = summed_;
  while (!done() && missing_[summed_] == 0) {
    sum(summed_);
    ++summed_;
  }
  return summed_ != before;
}

void SegmentSum::sum(int segment) {
  const auto elem_bytes = static_cast<std::int64_t>(tensors_.whole.element_size());
  const std::int64_t own = place_.rank * part_elems_ + segment * segment_elems_;
  for (int rank = 0; rank < place_.size; ++rank) {
    pieces_[rank] =
        rank == place_.rank
            ? static_cast<const std::byte*>(tensors_.whole.const_data_ptr()) + own * elem_bytes
            : slot(segment, rank);
  }
  auto* const out =
      static_cast<std::byte*>(tensors_.mine.mutable_data_ptr()) +
      segment * segment_elems_ * static_cast<std::int64_t>(tensors_.mine.element_size());
  sum_in_rank_order({.out = out,
                     .out_dtype = tensors_.mine.scalar_type(),
                     .pieces = pieces_,
                     .piece_dtype = tensors_.whole.scalar_type(),
                     .elems = elems_of(segment)},
                    tensors_.accumulate);
}

}  // namespace capstan::comm
