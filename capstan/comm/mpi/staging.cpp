#include "capstan/comm/mpi/staging.h"

#include <algorithm>
#include <memory>

#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/comm/mpi/pinned_pool.h"
#include "capstan/device/host_buffer.h"

namespace capstan::comm {

at::Tensor PinnedPool::take(const at::Tensor& like) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const at::Tensor& host) {
      return host.numel() == like.numel() && host.scalar_type() == like.scalar_type();
    };
    const auto found = std::ranges::find_if(free_, fits);
    if (found != free_.end()) {
      at::Tensor host = std::move(*found);
      free_.erase(found);
      return host;
    }
  }
  const auto bytes = static_cast<std::int64_t>(like.nbytes());
  auto memory = std::make_shared<device::HostBuffer>(bytes, device::HostMemory::pinned);
  return at::from_blob(
      memory->data(), {like.numel()}, [memory](void*) mutable { memory.reset(); },
      at::TensorOptions(like.scalar_type()));
}

void PinnedPool::give_back(at::Tensor host) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(host));
}

Staging::Staging(std::shared_ptr<PinnedPool> pool, c10::Device device)
    : pool_(std::move(pool)),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      event_(device.type()) {}

Staging::~Staging() {
  for (Pair& pair : pairs_) {
    pool_->give_back(std::move(pair.host));
  }
}

at::Tensor Staging::stage(const at::Tensor& tensor, bool read, bool write) {
  pairs_.push_back({tensor, pool_->take(tensor), read, write});
  return pairs_.back().host;
}

void Staging::start_inputs() {
  const c10::impl::VirtualGuardImpl device(stream_.device_type());
  c10::Event issued(stream_.device_type());
  issued.record(device.getStream(stream_.device()));
  issued.block(stream_);
  const c10::StreamGuard on_ours(stream_);
  for (const Pair& pair : pairs_) {
    if (pair.read) pair.host.copy_(pair.device, /*non_blocking=*/true);
  }
  event_.record(stream_);
}

bool Staging::inputs_ready() { return event_.query(); }

void Staging::start_outputs() {
  const c10::StreamGuard on_ours(stream_);
  for (const Pair& pair : pairs_) {
    if (pair.write) pair.device.copy_(pair.host, /*non_blocking=*/true);
  }
  event_.record(stream_);
}

bool Staging::outputs_ready() { return event_.query(); }

}  // namespace capstan::comm
