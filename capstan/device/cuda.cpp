#include <cuda_runtime_api.h>

#include "capstan/device/facts.h"
#include "capstan/device/pinning.h"

namespace capstan::device {

std::vector<DeviceFacts> list_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    return {};
  }
  int before = 0;
  cudaGetDevice(&before);
  std::vector<DeviceFacts> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
      continue;
    }
    DeviceFacts facts{.name = properties.name,
                      .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                      .major = properties.major,
                      .minor = properties.minor};
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    if (cudaSetDevice(index) == cudaSuccess &&
        cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      facts.free_bytes = static_cast<std::int64_t>(free_bytes);
    }
    devices.push_back(facts);
  }
  cudaSetDevice(before);
  return devices;
}

std::string why_no_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  return count > 0 ? "" : "no CUDA device";
}

std::string pin_memory(void* memory, std::int64_t bytes) {
  const cudaError_t error =
      cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

void unpin_memory(void* memory) noexcept { cudaHostUnregister(memory); }

}  // namespace capstan::device
