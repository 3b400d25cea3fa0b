#include "capstan/data/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "capstan/data/unicode.h"

namespace capstan::data {
namespace {

constexpr std::uint32_t kFirstSubstitute = 0x100;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
         (byte >= 0xae && byte <= 0xff);
}

// Unprintable bytes take the substitutes in their own order.
constexpr std::array<std::uint32_t, 256> make_byte_alphabet() {
  std::array<std::uint32_t, 256> codes{};
  std::uint32_t next = kFirstSubstitute;
  for (int byte = 0; byte < 256; ++byte) {
    codes[static_cast<std::size_t>(byte)] =
        stands_for_itself(byte) ? static_cast<std::uint32_t>(byte) : next++;
  }
  return codes;
}

constexpr std::array<std::uint32_t, 256> kByteAlphabet = make_byte_alphabet();

constexpr std::array<int, 0x180> make_reverse_alphabet() {
  std::array<int, 0x180> bytes{};
  for (int& each : bytes) each = -1;
  for (std::size_t byte = 0; byte < 256; ++byte)
    bytes[kByteAlphabet[byte]] = static_cast<int>(byte);
  return bytes;
}

constexpr std::array<int, 0x180> kReverseAlphabet = make_reverse_alphabet();

}  // namespace

std::string character_of(unsigned char byte) {
  const std::uint32_t code = kByteAlphabet[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3fU))};
}

std::optional<std::string> bytes_of(std::string_view token_text) {
  std::string bytes;
  while (!token_text.empty()) {
    const CodePoint point = first_code_point(token_text);
    if (point.value >= kReverseAlphabet.size() || kReverseAlphabet[point.value] < 0) return {};
    bytes.push_back(static_cast<char>(kReverseAlphabet[point.value]));
    token_text.remove_prefix(static_cast<std::size_t>(point.bytes));
  }
  return bytes;
}

}  // namespace capstan::data
