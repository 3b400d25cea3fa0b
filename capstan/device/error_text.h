// An exception as text. libtorch's errors carry the frames of C++ in what(): no reader's business.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "capstan/base/error.h"

namespace capstan::device {

inline std::string error_text(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

// As a part of another message: of our own errors only what happened, not where nor the fix.
inline std::string reason_of(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? ours->info().what : error_text(error);
}

}  // namespace capstan::device
