#include "capstan/comm/mpi/mpi_backend.h"

namespace capstan::comm {
namespace {

// Segments of a broadcast through more than two ranks: long enough that one takes longer to move
// than to start, short enough that the tree fills early.
constexpr std::int64_t kBroadcastSegmentBytes = 4 << 20;

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

int dtype_code(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return 1;
    case at::ScalarType::Half:
      return 2;
    case at::ScalarType::BFloat16:
      return 3;
    case at::ScalarType::Double:
      return 4;
    case at::ScalarType::Int:
      return 5;
    case at::ScalarType::Long:
      return 6;
    default:
      return 0;
  }
}

int make_tag(int group, std::int64_t number, const OpFacts& facts) {
  const bool to_peer = number < 0;
  const auto counted = static_cast<std::uint64_t>(to_peer ? -number : number);
  std::uint64_t what = (counted << 3) | static_cast<std::uint64_t>(dtype_code(facts.dtype));
  if (!to_peer) {
    what = mix(counted, facts);
    what ^= (what >> 47) ^ (what >> 23);  // all bits have a say in those that are kept
  }
  const int operation = static_cast<int>(what & ((1U << kTagOpBits) - 1));
  return (((group << 1) | (to_peer ? 1 : 0)) << kTagOpBits) | operation;
}

}  // namespace

MpiBackend::MpiBackend(std::shared_ptr<MpiWorker> worker, std::shared_ptr<MpiGroup> group,
                       const MpiOptions& options)
    : Backend(group->rank, group->size()),
      worker_(std::move(worker)),
      group_(std::move(group)),
      options_(options),
      sends_(group_->size()),
      recvs_(group_->size()) {}

std::unique_ptr<MpiOp> MpiBackend::begin(OpKind kind, int peer, std::vector<Buffer> buffers) {
  auto op = std::make_unique<MpiOp>();
  op->group = group_;
  op->facts = {.kind = kind, .peer = peer};
  for (Buffer& buffer : buffers) {
    op->facts.elems = std::max(op->facts.elems, buffer.tensor.numel());
    op->facts.dtype = buffer.tensor.scalar_type();
    if (!buffer.tensor.is_cpu()) {
      if (!op->staging) {
        op->staging = std::make_unique<Staging>(pinned_, buffer.tensor.device());
      }
      buffer.tensor = op->staging->stage(buffer.tensor, buffer.read, buffer.write);
    }
    op->tensors.push_back(std::move(buffer.tensor));
  }
  if (announced_) {
    op->facts = *announced_;
    announced_.reset();
  }
  if (op->staging) {
    op->staging->start_inputs();
  }
  return op;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::submit(std::unique_ptr<MpiOp> op, TransferPlan plan) {
  const bool to_peer = op->facts.kind == OpKind::send || op->facts.kind == OpKind::recv;
  op->number = to_peer ? -++(op->facts.kind == OpKind::send ? sends_ : recvs_).at(op->facts.peer)
                       : ++collectives_;
  op->tag = make_tag(group_->id, op->number, op->facts);
  split_messages(plan, options_.max_message_bytes);
  op->plan = std::move(plan);
  for (const Transfer& transfer : op->plan.transfers) {
    op->left_in_stage.resize(transfer.stage + 1);
    ++op->left_in_stage[transfer.stage];
  }
  op->issued = MpiClock::now();
  op->work = c10::make_intrusive<OpWork>(rank_, c10d::OpType::UNKNOWN);
  c10::intrusive_ptr<c10d::Work> work = op->work;
  worker_->submit(std::move(op));
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::_allgather_base(at::Tensor& whole, at::Tensor& mine,
                                                           const c10d::AllgatherOptions&) {
  auto op = begin(OpKind::all_gather, -1, {{whole, false, true}, {mine, true, false}});
  TransferPlan plan =
      plan_all_gather(group_->place(), memory_of(op->tensors[0]), memory_of(op->tensors[1]),
                      static_cast<std::int64_t>(mine.nbytes()));
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::alltoall_base(at::Tensor& received, at::Tensor& sent,
                                                         std::vector<std::int64_t>& received_splits,
                                                         std::vector<std::int64_t>& sent_splits,
                                                         const c10d::AllToAllOptions&) {
  TORCH_CHECK(received_splits.empty() && sent_splits.empty(), "mpi exchanges equal parts only");
  auto op = begin(OpKind::all_to_all, -1, {{received, false, true}, {sent, true, false}});
  TransferPlan plan =
      plan_exchange(group_->place(), memory_of(op->tensors[0]), memory_of(op->tensors[1]),
                    static_cast<std::int64_t>(sent.nbytes()) / size_, /*own_part_too=*/true);
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::exchange(at::Tensor& received, at::Tensor& whole) {
  auto op = begin(OpKind::reduce_scatter, -1, {{received, false, true}, {whole, true, false}});
  TransferPlan plan =
      plan_exchange(group_->place(), memory_of(op->tensors[0]), memory_of(op->tensors[1]),
                    static_cast<std::int64_t>(whole.nbytes()) / size_, /*own_part_too=*/false);
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::reduce_scatter_ordered(at::Tensor& mine,
                                                                  at::Tensor& whole,
                                                                  bool accumulate) {
  auto op = begin(OpKind::reduce_scatter, -1, {{mine, false, true}, {whole, true, false}});
  op->sum = std::make_unique<SegmentSum>(
      group_->place(), SegmentSum::Tensors{mine, whole, accumulate},
      std::min(options_.segment_bytes, options_.max_message_bytes), segments_);
  TransferPlan plan = op->sum->plan();
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                     const c10d::BroadcastOptions& how) {
  const int root = static_cast<int>(how.rootRank);
  auto op = begin(OpKind::broadcast, root, {{tensors.at(0), rank_ == root, rank_ != root}});
  const auto bytes = static_cast<std::int64_t>(tensors[0].nbytes());
  TransferPlan plan =
      plan_broadcast(group_->place(), root, memory_of(op->tensors[0]), bytes,
                     size_ > 2 ? kBroadcastSegmentBytes : std::max(bytes, std::int64_t{1}));
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::barrier(const c10d::BarrierOptions&) {
  return submit(begin(OpKind::barrier, -1, {}), plan_barrier(group_->place()));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::send(std::vector<at::Tensor>& tensors, int to, int) {
  auto op = begin(OpKind::send, to, {{tensors.at(0), true, false}});
  TransferPlan plan = plan_to_peer(Direction::send, to, memory_of(op->tensors[0]),
                                   static_cast<std::int64_t>(tensors[0].nbytes()));
  return submit(std::move(op), std::move(plan));
}

c10::intrusive_ptr<c10d::Work> MpiBackend::recv(std::vector<at::Tensor>& tensors, int from, int) {
  auto op = begin(OpKind::recv, from, {{tensors.at(0), false, true}});
  TransferPlan plan = plan_to_peer(Direction::recv, from, memory_of(op->tensors[0]),
                                   static_cast<std::int64_t>(tensors[0].nbytes()));
  return submit(std::move(op), std::move(plan));
}

std::string MpiBackend::explain_stall() {
  const std::lock_guard lock(group_->mutex);
  return group_->stall;
}

void MpiBackend::abort_with(std::string_view reason) {
  {
    const std::lock_guard lock(group_->mutex);
    if (!group_->failure.empty()) return;
    group_->failure = reason;
  }
  worker_->abort(group_, std::string(reason));
}

}  // namespace capstan::comm
