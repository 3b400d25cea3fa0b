#include "capstan/engine/room.h"

#include <algorithm>

#include <c10/core/CachingDeviceAllocator.h>

#include "capstan/comm/numbers.h"
#include "capstan/device/host_facts.h"

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
  const c10::Device device = view.home();
  if (device.is_cpu() && !options.device_bytes.has_value()) return std::nullopt;
  std::int64_t room = 0;
  if (options.device_bytes.has_value()) {
    room = *options.device_bytes;
  } else {
    room = free_bytes(device);
    for (const at::Tensor& param : view.params) room += static_cast<std::int64_t>(param.nbytes());
  }
  return std::ranges::min(
      comm::from_all_ranks(group, device, room - options.activation_bytes, "device memory"));
}

std::optional<HostRoom> host_room(comm::Group& group, c10::Device device, std::int64_t need_bytes) {
  const auto available = device::available_host_bytes();
  const std::int64_t here = device::host_id();
  const auto hosts = comm::from_all_ranks(group, device, here, "host");
  const auto needs = comm::from_all_ranks(group, device, need_bytes, "host memory");
  if (!available.has_value()) return std::nullopt;
  HostRoom room{.available_bytes = *available, .ranks = 0};
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != here) continue;
    ++room.ranks;
    room.need_bytes += needs[rank];
  }
  return room;
}

}  // namespace capstan::engine
