// Small files in which Linux tells facts about itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace capstan::cli {

// The first line without white space at its ends; empty when the file cannot be read.
[[nodiscard]] std::string read_line(const std::filesystem::path& path);

// The value of `key` in a file of lines "Key:   123 kB", as bytes.
[[nodiscard]] std::optional<std::int64_t> read_kib_as_bytes(const std::filesystem::path& path,
                                                            std::string_view key);

// A file that holds one number, or nothing usable ("max", not there).
[[nodiscard]] std::optional<std::int64_t> read_number(const std::filesystem::path& path);

}  // namespace capstan::cli
