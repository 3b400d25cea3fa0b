#include "capstan/data/gpt2_split.h"

#include <array>

#include "capstan/data/unicode.h"

namespace capstan::data {
namespace {

// Longest first would not matter: no two of them start alike and differ in length, but 're and the
// like need their second letter.
constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t",  "'re", "'ve",
                                                           "'m", "'ll", "'d"};

std::size_t contraction_length(std::string_view text) {
  for (const std::string_view each : kContractions) {
    if (text.starts_with(each)) return each.size();
  }
  return 0;
}

CharKind kind_at(std::string_view text) { return kind_of(first_code_point(text).value); }

// Bytes of the longest run of one kind at the start.
std::size_t run_length(std::string_view text, CharKind kind) {
  std::size_t length = 0;
  while (length < text.size()) {
    const CodePoint point = first_code_point(text.substr(length));
    if (kind_of(point.value) != kind) break;
    length += static_cast<std::size_t>(point.bytes);
  }
  return length;
}

// White space up to the end of the text, or all but its last code point: that one belongs to the
// word after it if it is a space, and is a piece of its own otherwise.
std::size_t space_length(std::string_view text) {
  std::size_t length = 0;
  std::size_t last = 0;
  while (length < text.size()) {
    const CodePoint point = first_code_point(text.substr(length));
    if (kind_of(point.value) != CharKind::space) break;
    last = static_cast<std::size_t>(point.bytes);
    length += last;
  }
  const bool at_end = length == text.size();
  return at_end || length == last ? length : length - last;
}

std::size_t piece_length(std::string_view text) {
  if (const std::size_t length = contraction_length(text); length > 0) return length;
  const std::size_t lead = text[0] == ' ' ? 1 : 0;
  if (text.size() > lead) {
    const std::string_view rest = text.substr(lead);
    const CharKind kind = kind_at(rest);
    if (kind != CharKind::space) return lead + run_length(rest, kind);
  }
  return space_length(text);
}

}  // namespace

std::vector<std::string_view> gpt2_split(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const std::size_t length = piece_length(text);
    pieces.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

}  // namespace capstan::data
