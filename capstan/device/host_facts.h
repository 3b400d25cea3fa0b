// How much host memory can still be taken, and by whom together.
#pragma once

#include <cstdint>
#include <optional>

namespace capstan::device {

// What the kernel would give without swapping, within the limit of this process's control group.
// Nothing where neither can be read.
std::optional<std::int64_t> available_host_bytes();

// A number that processes share whose memory is limited together: those of one machine, or of one
// container on it. Zero where that cannot be told.
std::int64_t host_id();

}  // namespace capstan::device
