// Which accelerators this machine has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::device {

struct DeviceFacts {
  std::string name;
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;  // at the moment of the question
  int major = 0;                // compute capability
  int minor = 0;
};

// In the order of their indices. Empty without a GPU, without a driver, or in a build without CUDA.
std::vector<DeviceFacts> list_devices();

// Why list_devices() is empty, in the driver's words; empty when there are devices.
std::string why_no_devices();

}  // namespace capstan::device
