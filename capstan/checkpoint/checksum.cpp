#include "capstan/checkpoint/checksum.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace capstan::checkpoint {
namespace {

// The primes of the published algorithm.
constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5;

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

template <typename Word>
std::uint64_t read_word(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t mix_word(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

// Four sums over every fourth word, so that a processor can work on them side by side.
std::uint64_t sum_stripes(const std::byte*& at, const std::byte* end) {
  std::array<std::uint64_t, 4> sums = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  for (; end - at >= 32; at += 32) {
    for (std::size_t i = 0; i < 4; ++i) {
      sums[i] = mix_word(sums[i], read_word<std::uint64_t>(at + 8 * i));
    }
  }
  std::uint64_t sum = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) +
                      std::rotl(sums[3], 18);
  for (const std::uint64_t one : sums) sum = (sum ^ mix_word(0, one)) * kPrime1 + kPrime4;
  return sum;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  std::uint64_t sum = bytes.size() >= 32 ? sum_stripes(at, end) : kPrime5;
  sum += bytes.size();
  for (; end - at >= 8; at += 8) {
    sum = std::rotl(sum ^ mix_word(0, read_word<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    sum = std::rotl(sum ^ (read_word<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) {
    sum = std::rotl(sum ^ (std::to_integer<std::uint64_t>(*at) * kPrime5), 11) * kPrime1;
  }
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
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
