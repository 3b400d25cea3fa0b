#include "capstan/checkpoint/checksum.h"

#include <charconv>

#include <fmt/format.h>
#include <xxhash.h>

namespace capstan::checkpoint {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string checksum_text(std::uint64_t sum) { return fmt::format("{:016x}", sum); }

std::optional<std::uint64_t> read_checksum(std::string_view text) {
  std::uint64_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (text.size() != 16 || error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return sum;
}

}  // namespace capstan::checkpoint
