// Paths as the user knows them.
#pragma once

#include <filesystem>
#include <string>

namespace capstan {

// The path itself; for a file in memory that stands for a pipe, the name that it was made with
// (memfd_create), which is the one that the user gave.
std::string shown_path(const std::filesystem::path& path);

}  // namespace capstan
