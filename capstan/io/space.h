// How much room a folder's disk has, asked before the work starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace capstan::io {

// Bytes that this user can still write there. Throws IoError, also for a folder that is not there.
[[nodiscard]] std::int64_t free_bytes(const std::filesystem::path& folder);

// Throws IoError with both numbers when the folder's disk has less than `needed_bytes`.
// `purpose` ends the sentence "... for", as in "the optimizer state of rank 0".
void require_free_bytes(const std::filesystem::path& folder, std::int64_t needed_bytes,
                        std::string_view purpose);

}  // namespace capstan::io
