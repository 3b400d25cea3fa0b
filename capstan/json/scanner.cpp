#include "capstan/json/scanner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::json {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// The length of the UTF-8 sequence at the start of `text`, 0 when it is none. Overlong forms,
// surrogates and code points above U+10FFFF are none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

Scanner::Scanner(std::string_view text, std::string source)
    : text_(text), source_(std::move(source)) {}

char Scanner::peek(std::size_t ahead) const {
  return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
}

char Scanner::take() {
  const char c = peek();
  skip(1);
  return c;
}

void Scanner::skip(std::size_t bytes) {
  for (; bytes > 0 && !at_end(); --bytes) {
    if (text_[at_++] == '\n') {
      ++place_.line;
      place_.column = 1;
    } else {
      ++place_.column;
    }
  }
}

void Scanner::skip_blank() {
  while (!at_end()) {
    if (is_space(peek())) {
      skip(1);
    } else if (peek() == '#' || starts_with("//")) {
      skip(std::min(rest().find('\n'), rest().size()));
    } else if (starts_with("/*")) {
      const Place opened = place();
      const std::size_t end = rest().find("*/", 2);
      if (end == std::string_view::npos) {
        fail("a comment that begins with /* is never closed", opened, "close it with */");
      }
      skip(end + 2);
    } else {
      return;
    }
  }
}

void Scanner::skip_spaces() {
  while (peek() == ' ' || peek() == '\t' || peek() == '\r') skip(1);
}

std::string Scanner::where(Place place) const {
  return fmt::format("{}:{}:{}", source_, place.line, place.column);
}

void Scanner::fail(std::string what, Place place, std::string fix) const {
  throw ConfigError({.what = std::move(what), .where = where(place), .fix = std::move(fix)});
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void require_utf8(std::string_view text, const std::string& source) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw ConfigError({.what = "the text is UTF-16", .where = source, .fix = "save it as UTF-8"});
  }
  Scanner scanner(text, source);
  while (!scanner.at_end()) {
    const std::size_t length = utf8_length(scanner.rest());
    if (length == 0) {
      scanner.fail(
          fmt::format("byte 0x{:02x} is not UTF-8", static_cast<unsigned char>(scanner.peek())),
          scanner.place(), "save the text as UTF-8; is this really a configuration file?");
    }
    scanner.skip(length);
  }
}

}  // namespace capstan::json
