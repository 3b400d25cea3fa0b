#include "capstan/data/unicode.h"

#include <algorithm>
#include <span>

#include "capstan/data/unicode_table.h"

namespace capstan::data {
namespace {

bool in_ranges(std::span<const CodeRange> ranges, std::uint32_t code) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](std::uint32_t value, const CodeRange& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

// The property White_Space: 25 code points, stable since Unicode 6.3.
bool is_white_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

constexpr CodePoint kInvalidByte = {0xfffd, 1};

// Smallest code point that needs so many bytes; shorter ones in that form are not UTF-8.
constexpr std::uint32_t kSmallestOfLength[] = {0, 0, 0x80, 0x800, 0x10000};

int sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

}  // namespace

CharKind kind_of(std::uint32_t code_point) {
  if (code_point < 0x80) {
    const auto letter = code_point | 0x20U;
    if (letter >= 'a' && letter <= 'z') return CharKind::letter;
    if (code_point >= '0' && code_point <= '9') return CharKind::number;
    return is_white_space(code_point) ? CharKind::space : CharKind::other;
  }
  if (is_white_space(code_point)) return CharKind::space;
  if (in_ranges(letter_ranges(), code_point)) return CharKind::letter;
  return in_ranges(number_ranges(), code_point) ? CharKind::number : CharKind::other;
}

CodePoint first_code_point(std::string_view text) {
  if (text.empty()) return {};
  const auto lead = static_cast<unsigned char>(text[0]);
  const int length = sequence_length(lead);
  if (length == 0 || text.size() < static_cast<std::size_t>(length)) return kInvalidByte;
  if (length == 1) return {lead, 1};
  std::uint32_t value = lead & (0x7fU >> length);
  for (int i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
    if ((next & 0xc0U) != 0x80U) return kInvalidByte;
    value = (value << 6U) | (next & 0x3fU);
  }
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kSmallestOfLength[length] || surrogate || value > 0x10ffff) return kInvalidByte;
  return {value, length};
}

std::string printable_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const CodePoint point = first_code_point(bytes);
    const auto length = static_cast<std::size_t>(point.bytes);
    const bool control = point.value < 0x20 || (point.value >= 0x7f && point.value < 0xa0);
    const bool invalid = point.value == 0xfffd && length == 1;
    const bool allowed = point.value == '\n' || point.value == '\t';
    text += (control && !allowed) || invalid ? "\xef\xbf\xbd" : bytes.substr(0, length);
    bytes.remove_prefix(length);
  }
  return text;
}

}  // namespace capstan::data
