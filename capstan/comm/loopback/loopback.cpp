#include "capstan/comm/loopback/loopback.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/comm/loopback/hub.h"

namespace capstan::comm {
namespace {

class LoopbackBackend final : public c10d::Backend, public OwnBackend {
 public:
  LoopbackBackend(std::shared_ptr<LoopbackHub> hub, int rank)
      : Backend(rank, hub->size()), hub_(std::move(hub)) {}

  const std::string getBackendName() const override { return "loopback"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions&) override {
    return meet(OpKind::all_gather, Movement::gather, out, in);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<std::int64_t>& out_splits,
                                               std::vector<std::int64_t>& in_splits,
                                               const c10d::AllToAllOptions&) override {
    TORCH_CHECK(out_splits.empty() && in_splits.empty(), "loopback exchanges equal parts only");
    return meet(OpKind::all_to_all, Movement::exchange, out, in);
  }
  c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& received, at::Tensor& whole) override {
    return meet(OpKind::reduce_scatter, Movement::exchange_others, received, whole);
  }
  bool sums(const at::Tensor&) const override { return false; }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_ordered(at::Tensor&, at::Tensor&, bool) override {
    TORCH_CHECK(false, "loopback moves bytes only");
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override {
    return meet(OpKind::broadcast, Movement::from_root, tensors.at(0), tensors.at(0),
                static_cast<int>(how.rootRank));
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return meet(OpKind::barrier, Movement::none, {}, {});
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    return meet(OpKind::send, Movement::to_peer, {}, tensors.at(0), to);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    return meet(OpKind::recv, Movement::to_peer, tensors.at(0), {}, from);
  }
  void abort() override { hub_->abort("a rank aborted the group"); }

  void announce(const OpFacts& facts) override { announced_ = facts; }
  std::string explain_stall() override { return hub_->explain_stall(); }
  void abort_with(std::string_view reason) override { hub_->abort(reason); }

 private:
  c10::intrusive_ptr<c10d::Work> meet(OpKind kind, Movement movement, at::Tensor out, at::Tensor in,
                                      int peer = -1) {
    const at::Tensor& largest = out.defined() ? out : in;
    // Threads share a device's streams in ways that deadlock; one rank alone does not.
    TORCH_CHECK(!largest.defined() || largest.is_cpu() || size_ == 1,
                "loopback between several ranks moves CPU tensors only");
    OpFacts facts{.kind = kind, .peer = peer};
    if (largest.defined()) {
      facts.dtype = largest.scalar_type();
      facts.elems = largest.numel();
    }
    if (announced_) {
      facts = *announced_;
      announced_.reset();
    }
    auto work = c10::make_intrusive<OpWork>(rank_, c10d::OpType::UNKNOWN);
    Arrival arrival{rank_, facts, movement, std::move(out), std::move(in), work};
    if (movement == Movement::to_peer) {
      hub_->arrive_at_peer(std::move(arrival));
    } else {
      hub_->arrive(std::move(arrival));
    }
    return work;
  }

  const std::shared_ptr<LoopbackHub> hub_;
  std::optional<OpFacts> announced_;
};

}  // namespace

std::shared_ptr<LoopbackHub> make_loopback_hub(int size, LoopbackOptions options) {
  if (size < 1) {
    throw ConfigError({.what = "a group of " + std::to_string(size) + " ranks",
                       .where = "loopback",
                       .fix = "use one rank or more"});
  }
  return std::make_shared<LoopbackHub>(size, std::move(options));
}

c10::intrusive_ptr<c10d::Backend> make_loopback(std::shared_ptr<LoopbackHub> hub, int rank) {
  return c10::make_intrusive<LoopbackBackend>(std::move(hub), rank);
}

}  // namespace capstan::comm
