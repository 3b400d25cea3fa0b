#include "capstan/engine/device_room.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace capstan::engine {
namespace {

std::int64_t free_bytes(c10::Device device) {
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(device.index());
  const std::int64_t kept = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  return static_cast<std::int64_t>(allocator->getMemoryInfo(device.index()).first) + kept;
}

}  // namespace

std::optional<std::int64_t> device_room(const shard::ModelView& view, const store::Options& options,
                                        comm::Group& group) {
  const c10::Device device =
      view.params.empty() ? c10::Device(c10::kCPU) : view.params.front().device();
  if (device.is_cpu() && !options.device_bytes.has_value()) return std::nullopt;
  std::int64_t room = 0;
  if (options.device_bytes.has_value()) {
    room = *options.device_bytes;
  } else {
    room = free_bytes(device);
    for (const at::Tensor& param : view.params) room += static_cast<std::int64_t>(param.nbytes());
  }
  const at::TensorOptions on_device = at::TensorOptions(at::kLong).device(device);
  const at::Tensor all = at::empty({group.size()}, on_device);
  group.all_gather(all, at::full({1}, room - options.activation_bytes, on_device), "device room")
      .wait();
  return all.min().item<std::int64_t>();
}

}  // namespace capstan::engine
