// Rows about file I/O: which path is in use, and how fast a folder is.
#pragma once

#include <filesystem>
#include <vector>

#include "capstan/cli/report/rows.h"

namespace capstan::cli {

// Really opens the queue and moves bytes through it.
[[nodiscard]] std::vector<Row> io_rows();
// Measures; throws IoError when the folder is missing, not writable or too full.
[[nodiscard]] std::vector<Row> folder_rows(const std::filesystem::path& folder);

}  // namespace capstan::cli
