// The files on disks that a killed process leaves behind (swap_files.h makes them); without
// libtorch, so that whoever starts processes can clean up after them.
#pragma once

#include <filesystem>

namespace capstan::store {

// The name of a swap file begins with this.
inline constexpr const char* kSwapPrefix = "capstan-swap-";

// Removes swap files of `folder` that no process holds; how many. Throws IoError.
int remove_left_swap_files(const std::filesystem::path& folder);

}  // namespace capstan::store
