#include "capstan/engine/memory_use.h"

#include <fstream>

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

namespace capstan::engine {

std::int64_t resident_bytes() {
  std::int64_t whole_pages = 0;
  std::int64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> whole_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

std::int64_t peak_device_bytes(c10::Device device) {
  if (device.is_cpu()) return 0;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return stats.allocated_bytes[all].peak;
}

}  // namespace capstan::engine
