// How much host memory can still be taken.
#pragma once

#include <cstdint>
#include <optional>

namespace capstan::device {

// What the kernel would give without swapping, within the limit of this process's control group.
// Nothing where neither can be read.
std::optional<std::int64_t> available_host_bytes();

}  // namespace capstan::device
