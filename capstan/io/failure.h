// Turns an errno into an IoError that names the file, the offset and what to do about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "capstan/base/error.h"

namespace capstan::io {

inline constexpr std::int64_t kNoOffset = -1;

// The user's place of a failure: what was tried on which file, and where in it.
struct FailedCall {
  std::string_view verb;  // "read", "write", "open", "fsync", ...
  std::filesystem::path file;
  std::int64_t offset = kNoOffset;
  std::int64_t bytes = 0;  // how many were asked for; 0 where that means nothing
};

[[nodiscard]] IoError io_failure(const FailedCall& call, int error_number);

// A read that met the end of the file; `offset` is where the file ended.
[[nodiscard]] IoError unexpected_end(const FailedCall& call);

// "ENOSPC (No space left on device)".
[[nodiscard]] std::string errno_text(int error_number);

}  // namespace capstan::io
