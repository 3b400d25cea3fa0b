// Checksums of stored bytes: XXH64 (seed 0), faster than any disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace capstan::checkpoint {

std::uint64_t checksum(std::span<const std::byte> bytes);

// Sixteen hexadecimal digits, and back.
std::string checksum_text(std::uint64_t sum);
std::optional<std::uint64_t> read_checksum(std::string_view text);

}  // namespace capstan::checkpoint
