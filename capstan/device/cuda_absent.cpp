#include "capstan/device/facts.h"
#include "capstan/device/pinning.h"

namespace capstan::device {

std::vector<DeviceFacts> list_devices() { return {}; }

std::string why_no_devices() { return "this build has no CUDA (-DCAPSTAN_CUDA=ON turns it on)"; }

std::string pin_memory(void*, std::int64_t) { return why_no_devices(); }

void unpin_memory(void*) noexcept {}

}  // namespace capstan::device
