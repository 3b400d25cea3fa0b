// What every file here shares: made where it can be, and found out when it cannot be written.
#pragma once

#include <filesystem>
#include <fstream>

namespace capstan::monitor {

// Throws IoError where it cannot be made or written to.
void make_folder(const std::filesystem::path& folder);

// After a write that was flushed: throws IoError when it failed, or when nobody will find it
// because the file, or its folder, was deleted.
void check_written(const std::ofstream& file, const std::filesystem::path& path);

}  // namespace capstan::monitor
