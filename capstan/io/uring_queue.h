// RawQueue over io_uring. Built from uring_queue.cpp, or from uring_queue_absent.cpp where there is
// no liburing.
#pragma once

#include <memory>

#include "capstan/io/raw_queue.h"

namespace capstan::io {

// Throws IoError when this kernel has no io_uring or refuses it (a container, a sysctl), and
// ConfigError when capstan was built without it; both say what to change.
[[nodiscard]] std::unique_ptr<RawQueue> make_uring_queue(int depth);

}  // namespace capstan::io
