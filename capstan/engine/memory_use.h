// How much memory this process holds.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace capstan::engine {

std::int64_t resident_bytes();  // of this process, in host memory

// The largest amount that libtorch has held on a GPU so far; 0 for the CPU, which has no counter.
std::int64_t peak_device_bytes(c10::Device device);

}  // namespace capstan::engine
