#include "tests/support/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace capstan::test {
namespace {

// Where counting goes wrong.
constexpr std::array<std::uint64_t, 16> kEdges = {
    0,           1,          2,          0x7f,       0x80,        0xff,        0x7fff,
    0xffff,      0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 40U, 1ULL << 62U, (1ULL << 63U) - 1,
    1ULL << 63U, ~0ULL};

}  // namespace

std::string Mutator::change(std::string text) {
  const std::size_t rounds = below(4) == 0 ? 0 : 1 + below(6);
  for (std::size_t i = 0; i < rounds; ++i) mutate(text);
  if (text.size() > corpus_.max_bytes) text.resize(corpus_.max_bytes);
  return text;
}

void Mutator::mutate(std::string& text) {
  const std::size_t at = below(text.size() + 1);
  const std::size_t size = 1 + below(below(8) == 0 ? 400 : 12);
  switch (below(14)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(below(256));
      break;
    case 1:
      text.insert(at, 1, static_cast<char>(below(256)));
      break;
    case 2:
      text.erase(at, size);
      break;
    case 3:
      text.insert(at, text.substr(below(text.size() + 1), size));
      break;
    case 4:
    case 5:
      if (!corpus_.tokens.empty()) text.insert(at, pick(corpus_.tokens));
      break;
    case 6:
      text.resize(at);
      break;
    case 7: {
      const std::string& other = pick(corpus_.texts);
      text.insert(at, other.substr(below(other.size() + 1), 20 * size));
      break;
    }
    case 8:
      replace_digits(text);
      break;
    default:
      if (corpus_.values.empty()) {
        replace_binary(text);
      } else {
        replace_value(text);
      }
  }
}

// A value after some colon: the change that keeps a text readable.
void Mutator::replace_value(std::string& text) {
  const std::size_t colon = text.find(':', below(text.size() + 1));
  if (colon == std::string::npos) return;
  const std::size_t end = text.find_first_of(",\n}", colon);
  if (end == std::string::npos) return;
  const bool any = below(3) == 0 && !corpus_.tokens.empty();
  text.replace(colon + 1, end - colon - 1, any ? pick(corpus_.tokens) : pick(corpus_.values));
}

void Mutator::replace_digits(std::string& text) {
  constexpr const char* kDigits = "0123456789";
  const std::size_t begin = text.find_first_of(kDigits, below(text.size() + 1));
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
  const std::uint64_t edge = kEdges[below(kEdges.size())];
  text.replace(begin, end - begin, std::to_string(edge));
  if (below(4) == 0) text.insert(begin, 1, '-');
}

// A number of 1, 2, 4 or 8 bytes, or one bit.
void Mutator::replace_binary(std::string& text) {
  const std::size_t bytes = std::size_t{1} << below(4);
  if (text.size() < bytes) return;
  const std::size_t at = below(text.size() - bytes + 1);
  if (below(3) == 0) {
    text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
  } else {
    std::memcpy(text.data() + at, &kEdges[below(kEdges.size())], bytes);  // little-endian
  }
}

}  // namespace capstan::test
