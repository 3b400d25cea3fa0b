// Registers host memory with the device driver. Private to device.
#pragma once

#include <cstdint>
#include <string>

namespace capstan::device {

// Empty when it worked, else the reason.
std::string pin_memory(void* memory, std::int64_t bytes);
void unpin_memory(void* memory) noexcept;

}  // namespace capstan::device
