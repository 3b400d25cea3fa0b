// A c10d::Backend that is not ours: only what libtorch's interface has.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace capstan::test {

// Any backend without what makes it ours: stands for one that the caller hands in (Gloo, UCC).
class ForeignBackend final : public c10d::Backend {
 public:
  // Group treats one named "gloo" as it treats Gloo.
  explicit ForeignBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string name = "foreign")
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        name_(std::move(name)) {}

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& how) override {
    return inner_->_allgather_base(out, in, how);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<std::int64_t>& out_splits,
                                               std::vector<std::int64_t>& in_splits,
                                               const c10d::AllToAllOptions& how) override {
    return inner_->alltoall_base(out, in, out_splits, in_splits, how);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override {
    if (on_broadcast) on_broadcast();
    return inner_->broadcast(tensors, how);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override {
    return inner_->barrier(how);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return inner_->recv(tensors, from, tag);
  }

  std::function<void()> on_broadcast;  // as each one begins

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::string name_;
};

}  // namespace capstan::test
