#include "capstan/store/aside.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/base/error.h"

namespace capstan::store {
namespace {

at::Tensor bytes_at(void* memory, const c10::Storage& storage, c10::Device device) {
  return at::from_blob(memory, {static_cast<std::int64_t>(storage.nbytes())},
                       at::TensorOptions(at::kByte).device(device));
}

// The same memory, called the device's: a tensor lies where its storage says.
c10::DataPtr as_of(c10::DataPtr memory, c10::Device device) {
  void* const data = memory.get();
  const c10::DeleterFnPtr deleter = memory.get_deleter();
  return {data, memory.release_context(), deleter, device};
}

}  // namespace

c10::DataPtr Aside::host_memory(const c10::Storage& storage, MemoryKind kind) {
  c10::DataPtr memory = host_.take(static_cast<std::int64_t>(storage.nbytes()), kind);
  if (!host_.why_not_pinned().empty()) {
    throw ConfigError({.what = host_.why_not_pinned(),
                       .where = "offload_states()",
                       .fix = "raise the limit on locked memory (ulimit -l)"});
  }
  return memory;
}

void Aside::put(const std::vector<c10::Storage>& storages, MemoryKind kind) {
  const c10::OptionalDeviceGuard on_our_device(device_.device());
  // Freed on the device behind the copies; on a CPU these have ended then.
  for (const c10::Storage& storage : storages) {
    const auto same = [&](const Item& item) { return item.storage.is_alias_of(storage); };
    if (storage.nbytes() == 0 || std::any_of(items_.begin(), items_.end(), same)) continue;
    c10::DataPtr memory = host_memory(storage, kind);
    const c10::Device device = storage.device();
    bytes_at(memory.get(), storage, c10::kCPU)
        .copy_(bytes_at(storage.mutable_data(), storage, device), /*non_blocking=*/true);
    items_.push_back({storage, kind, Pool::gave(storage.data_ptr())});
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(as_of(std::move(memory), device));
  }
  wait();
  device_.trim();
}

void Aside::bring_back() {
  const c10::OptionalDeviceGuard on_our_device(device_.device());
  std::vector<c10::DataPtr> emptied;  // read until the copies have ended
  try {
    for (; !items_.empty(); items_.pop_back()) {
      const Item& item = items_.back();
      if (item.storage.use_count() == 1 || item.storage.data() == nullptr) continue;
      const c10::Device device = item.storage.device();
      c10::DataPtr memory =
          item.pooled ? device_.take(static_cast<std::int64_t>(item.storage.nbytes()), item.kind)
                      : c10::GetAllocator(device.type())->allocate(item.storage.nbytes());
      bytes_at(memory.get(), item.storage, device)
          .copy_(bytes_at(item.storage.mutable_data(), item.storage, c10::kCPU),
                 /*non_blocking=*/true);
      emptied.push_back(item.storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory)));
    }
  } catch (const std::exception&) {
    wait();
    throw;
  }
  wait();
}

void Aside::wait() const {
  const c10::Device device = device_.device();
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace capstan::store
