#include "tests/support/delayed_backend.h"

#include <random>

#include <ATen/cuda/Sleep.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace capstan::test {
namespace {

class DelayedBackend final : public c10d::Backend {
 public:
  DelayedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::int64_t max_cycles,
                 std::uint64_t seed)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        random_(seed),
        cycles_(0, max_cycles) {}

  const std::string getBackendName() const override { return "delayed"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& how) override {
    return late(in, [&] { return inner_->_allgather_base(out, in, how); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<std::int64_t>& out_splits,
                                               std::vector<std::int64_t>& in_splits,
                                               const c10d::AllToAllOptions& how) override {
    return late(in, [&] { return inner_->alltoall_base(out, in, out_splits, in_splits, how); });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override {
    return late(tensors.front(), [&] { return inner_->broadcast(tensors, how); });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override {
    return inner_->barrier(how);
  }

 private:
  // The operation is issued from a stream of its own that sleeps first.
  template <typename Issue>
  c10::intrusive_ptr<c10d::Work> late(const at::Tensor& tensor, const Issue& issue) {
    const c10::Device device = tensor.device();
    if (device.is_cpu()) return issue();
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream side = guard.getStreamFromGlobalPool(device);
    c10::Event now(device.type());
    now.record(guard.getStream(device));
    now.block(side);
    const c10::StreamGuard on_side(side);
    at::cuda::sleep(cycles_(random_));
    return issue();
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  std::mt19937_64 random_;
  std::uniform_int_distribution<std::int64_t> cycles_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> delay_streams(c10::intrusive_ptr<c10d::Backend> inner,
                                                std::int64_t max_cycles, std::uint64_t seed) {
  return c10::make_intrusive<DelayedBackend>(std::move(inner), max_cycles, seed);
}

}  // namespace capstan::test
