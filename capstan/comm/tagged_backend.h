// Collectives made of sends and receives whose tags name the operation, over a backend that has
// only libtorch's interface: ranks that issue different operations wait for each other, and can
// be told, where the backend's own collectives would mix their bytes or end the program (Gloo).
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/comm/own_backend.h"

namespace capstan::comm {

// Tensors of another device than the host go through the inner backend's own collectives.
// Threads: as Group; abort_with() from any.
class TaggedBackend final : public c10d::Backend, public OwnBackend {
 public:
  // `name` keeps the groups of one inner backend apart; equal on every rank.
  TaggedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string_view name);

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& whole, at::Tensor& mine,
                                                 const c10d::AllgatherOptions& how) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& received, at::Tensor& sent,
                                               std::vector<std::int64_t>& received_splits,
                                               std::vector<std::int64_t>& sent_splits,
                                               const c10d::AllToAllOptions& how) override;
  // The root sends to everybody: for the values of a model at its start, and for short texts.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

  void announce(const OpFacts& facts) override;
  c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& received, at::Tensor& whole) override;
  bool sums(const at::Tensor&) const override { return false; }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_ordered(at::Tensor& mine, at::Tensor& whole,
                                                        bool accumulate) override;
  std::string explain_stall() override { return {}; }
  void abort_with(std::string_view reason) override;

 private:
  class TaggedWork;
  // What goes to, and what comes from, a peer; undefined: nothing.
  using Part = std::function<at::Tensor(int peer)>;

  c10::intrusive_ptr<c10d::Work> move(const Part& outgoing, const Part& incoming);
  // Of all sends and receives between two ranks, which match in their order.
  int peer_tag() const;
  // One operation of these transfers, which an abort ends.
  c10::intrusive_ptr<c10d::Work> remember(std::vector<c10::intrusive_ptr<c10d::Work>> transfers);

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::uint64_t seed_;
  std::int64_t number_ = 0;
  int tag_ = 0;  // of the operation that was announced

  std::mutex mutex_;  // guards what follows
  std::vector<c10::weak_intrusive_ptr<TaggedWork>> in_flight_;
};

}  // namespace capstan::comm
