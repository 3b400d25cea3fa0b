// One rank's side of an MPI group, as c10d sees it: turns operations into transfers for the MPI
// thread. Private to comm/mpi.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/comm/mpi/mpi_thread.h"
#include "capstan/comm/mpi/pinned_pool.h"

namespace capstan::comm {

// Tags tell groups and operations apart: MPI matches by tag between each pair of ranks. All that
// makes a collective is mixed into it, so that two different ones do not meet; they stall, and the
// ranks find out why. Of a send and a receive only the number and the dtype are: sizes may differ.
//   [ group | send/recv? 1 | operation 17 ]
inline constexpr int kTagOpBits = 17;
inline constexpr int kTagGroupShift = 1 + kTagOpBits;

// Threads: as Group; abort_with() and explain_stall() from any.
class MpiBackend final : public c10d::Backend, public OwnBackend {
 public:
  MpiBackend(std::shared_ptr<MpiWorker> worker, std::shared_ptr<MpiGroup> group,
             const MpiOptions& options);

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& whole, at::Tensor& mine,
                                                 const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& received, at::Tensor& sent,
                                               std::vector<std::int64_t>& received_splits,
                                               std::vector<std::int64_t>& sent_splits,
                                               const c10d::AllToAllOptions&) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override;
  void abort() override { abort_with("a rank aborted the group"); }

  void announce(const OpFacts& facts) override { announced_ = facts; }
  c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& received, at::Tensor& whole) override;
  bool sums(const at::Tensor& whole) const override { return whole.is_cpu() && whole.numel() > 0; }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_ordered(at::Tensor& mine, at::Tensor& whole,
                                                        bool accumulate) override;
  std::string explain_stall() override;
  void abort_with(std::string_view reason) override;

 private:
  struct Buffer {
    at::Tensor tensor;
    bool read = false;
    bool write = false;
  };
  // Begins an operation over `buffers`: host memory in their order, staged where needed.
  std::unique_ptr<MpiOp> begin(OpKind kind, int peer, std::vector<Buffer> buffers);
  c10::intrusive_ptr<c10d::Work> submit(std::unique_ptr<MpiOp> op, TransferPlan plan);

  const std::shared_ptr<MpiWorker> worker_;
  const std::shared_ptr<MpiGroup> group_;
  const MpiOptions options_;
  const std::shared_ptr<BufferPool> segments_ = std::make_shared<BufferPool>();
  const std::shared_ptr<PinnedPool> pinned_ = std::make_shared<PinnedPool>();
  std::optional<OpFacts> announced_;
  std::int64_t collectives_ = 0;
  std::vector<std::int64_t> sends_;  // by peer
  std::vector<std::int64_t> recvs_;
};

}  // namespace capstan::comm
