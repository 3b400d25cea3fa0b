#include <algorithm>

#include <ATen/ops/empty_like.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include "capstan/comm/group_check.h"
#include "capstan/comm/group_state.h"
#include "capstan/comm/rank_sum.h"
#include "capstan/profile/event_clock.h"

namespace capstan::comm {
namespace {

profile::Span sum_span(const GroupState& group, const at::Tensor& parts) {
  return {group.options.recorder.get(),
          {.name = "sum in rank order",
           .bytes = static_cast<std::int64_t>(parts.nbytes()),
           .device = profile::index_of(parts.device())}};
}

// The local half of a reduce-scatter: each rank's copy of our part, added in rank order.
void sum_parts(const GroupState& group, at::Tensor& mine, const at::Tensor& received,
               const at::Tensor& whole, bool accumulate) {
  const std::int64_t part = mine.numel();
  const profile::Span span = sum_span(group, whole);
  // Our own backends leave out this rank's own part.
  const auto source = [&](int rank) -> const at::Tensor& {
    return group.own != nullptr && rank == group.rank ? whole : received;
  };
  if (!mine.is_cpu()) {
    std::vector<at::Tensor> parts;
    parts.reserve(static_cast<std::size_t>(group.size));
    for (int rank = 0; rank < group.size; ++rank) {
      parts.push_back(source(rank).narrow(0, rank * part, part));
    }
    sum_in_rank_order(mine, parts, accumulate);
    return;
  }
  const auto part_bytes = part * static_cast<std::int64_t>(whole.element_size());
  c10::SmallVector<const void*, 16> parts;
  for (int rank = 0; rank < group.size; ++rank) {
    parts.push_back(static_cast<const std::byte*>(source(rank).const_data_ptr()) +
                    rank * part_bytes);
  }
  sum_in_rank_order({.out = mine.mutable_data_ptr(),
                     .out_dtype = mine.scalar_type(),
                     .pieces = {parts.data(), parts.size()},
                     .piece_dtype = whole.scalar_type(),
                     .elems = part},
                    accumulate);
}

struct BlockSum {
  int ranks = 1;  // of a block
  bool accumulate = false;
};

// The same in blocks of ranks, then over the blocks.
void sum_parts_in_blocks(const GroupState& group, at::Tensor& mine, const at::Tensor& received,
                         const at::Tensor& whole, const BlockSum& how) {
  const std::int64_t part = mine.numel();
  const profile::Span span = sum_span(group, whole);
  std::vector<at::Tensor> blocks;
  for (int first = 0; first < group.size; first += how.ranks) {
    std::vector<at::Tensor> parts;
    for (int rank = first; rank < std::min(first + how.ranks, group.size); ++rank) {
      const bool own = group.own != nullptr && rank == group.rank;
      parts.push_back((own ? whole : received).narrow(0, rank * part, part));
    }
    blocks.push_back(at::empty_like(mine));
    sum_in_rank_order(blocks.back(), parts, /*accumulate=*/false);
  }
  sum_in_rank_order(mine, blocks, how.accumulate);
}

// Sends each rank its part of `whole`; our part arrives from everybody in `received`.
WorkPtr exchange(GroupState& group, at::Tensor received, at::Tensor whole) {
  if (group.own != nullptr) {
    return group.own->exchange(received, whole);
  }
  std::vector<std::int64_t> equal;
  return group.backend->alltoall_base(received, whole, equal, equal);
}

bool reduces_natively(const GroupState& group) {
  return group.options.reduction == Reduction::native && group.over_nccl;
}

bool backend_sums(const GroupState& group, const at::Tensor& whole) {
  return group.own != nullptr && group.own->sums(whole);
}

}  // namespace

PendingOp Group::reduce_scatter(at::Tensor mine, at::Tensor whole, ReduceOptions options) {
  const OpFacts facts = describe(OpKind::reduce_scatter, whole, options.label);
  check_tensor(*state_, facts, whole);
  check_tensor(*state_, facts, mine);
  if (whole.numel() != mine.numel() * size() || !can_sum(mine.scalar_type(), whole.scalar_type())) {
    refuse(*state_, facts,
           fmt::format("{} {} over {} ranks do not reduce to {} {}", whole.numel(),
                       dtype_name(whole.scalar_type()), size(), mine.numel(),
                       dtype_name(mine.scalar_type())));
  }
  const bool in_blocks = options.blocks_of > 1 && options.blocks_of < size();
  const bool native = reduces_natively(*state_) && !options.accumulate && !in_blocks &&
                      mine.scalar_type() == whole.scalar_type();
  InFlight op{.group = state_, .facts = facts, .buffers = {mine, whole}};
  if (native) {
    return state_->run(std::move(op),
                       [&] { return state_->backend->_reduce_scatter_base(mine, whole); });
  }
  if (backend_sums(*state_, whole) && !in_blocks) {
    return state_->run(std::move(op), [&] {
      return state_->own->reduce_scatter_ordered(mine, whole, options.accumulate);
    });
  }
  at::Tensor received = state_->buffers.take(whole, whole.numel());
  const BlockSum how{in_blocks ? options.blocks_of : 1, options.accumulate};
  op.finish = [group = state_.get(), mine, whole, received, how]() mutable {
    if (how.ranks > 1) {
      sum_parts_in_blocks(*group, mine, received, whole, how);
    } else {
      sum_parts(*group, mine, received, whole, how.accumulate);
    }
    group->buffers.give_back(std::move(received));
  };
  return state_->run(std::move(op), [&] { return exchange(*state_, received, whole); });
}

PendingOp Group::all_reduce(at::Tensor tensor, std::string_view label) {
  const OpFacts facts = describe(OpKind::all_reduce, tensor, label);
  check_tensor(*state_, facts, tensor);
  InFlight op{.group = state_, .facts = facts, .buffers = {tensor}};
  if (reduces_natively(*state_)) {
    return state_->run(std::move(op), [&] {
      std::vector<at::Tensor> tensors{tensor};
      return state_->backend->allreduce(tensors);
    });
  }
  if (tensor.nbytes() <= static_cast<std::size_t>(state_->options.small_all_reduce_bytes)) {
    return all_reduce_small(std::move(op), tensor);
  }
  return all_reduce_in_shards(std::move(op), tensor);
}

// Everybody sends everything to everybody and adds: one exchange.
PendingOp Group::all_reduce_small(InFlight op, at::Tensor tensor) {
  at::Tensor gathered = state_->buffers.take(tensor, tensor.numel() * size());
  op.finish = [group = state_.get(), tensor, gathered]() mutable {
    std::vector<at::Tensor> pieces = gathered.split(std::max<std::int64_t>(tensor.numel(), 1));
    if (tensor.numel() > 0) {
      const profile::Span span = sum_span(*group, gathered);
      sum_in_rank_order(tensor, pieces, /*accumulate=*/false);
    }
    group->buffers.give_back(std::move(gathered));
  };
  return state_->run(std::move(op),
                     [&] { return state_->backend->_allgather_base(gathered, tensor); });
}

// A reduce-scatter followed by an all-gather, in a padded copy when the ranks' parts are not equal.
PendingOp Group::all_reduce_in_shards(InFlight op, const at::Tensor& tensor) {
  const std::int64_t part = (tensor.numel() + size() - 1) / size();
  const bool padded = part * size() != tensor.numel();
  at::Tensor whole = tensor;
  if (padded) {
    whole = state_->buffers.take(tensor, part * size());
    whole.narrow(0, 0, tensor.numel()).copy_(tensor);
    whole.narrow(0, tensor.numel(), whole.numel() - tensor.numel()).zero_();
    op.finish = [group = state_.get(), tensor, whole]() mutable {
      tensor.copy_(whole.narrow(0, 0, tensor.numel()));
      group->buffers.give_back(std::move(whole));
    };
  }
  at::Tensor mine = whole.narrow(0, rank() * part, part);
  if (backend_sums(*state_, whole)) {
    op.second = [group = state_.get(), whole, mine]() mutable {
      return group->backend->_allgather_base(whole, mine);
    };
    return state_->run(std::move(op), [&] {
      return state_->own->reduce_scatter_ordered(mine, whole, /*accumulate=*/false);
    });
  }
  at::Tensor received = state_->buffers.take(tensor, part * size());
  op.second = [group = state_.get(), whole, mine, received]() mutable {
    sum_parts(*group, mine, received, whole, /*accumulate=*/false);
    group->buffers.give_back(std::move(received));
    return group->backend->_allgather_base(whole, mine);
  };
  return state_->run(std::move(op), [&] { return exchange(*state_, received, whole); });
}

}  // namespace capstan::comm
