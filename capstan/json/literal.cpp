#include "capstan/json/literal.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::json {
namespace {

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | (point >> 6));
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

char32_t read_hex4(Scanner& scan) {
  const Place start = scan.place();
  const std::string_view digits = scan.rest().substr(0, 4);
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() < 4 || error != std::errc{} || end != digits.data() + 4) {
    scan.fail("\\u is not followed by four hexadecimal digits", start, "write it as \\u00e9");
  }
  scan.skip(4);
  return value;
}

// After "\u". A pair of surrogates is one character; a lone one is an error.
char32_t read_code_point(Scanner& scan) {
  const Place start = scan.place();
  const char32_t first = read_hex4(scan);
  if (first < 0xD800 || first > 0xDFFF) return first;
  if (first < 0xDC00 && scan.starts_with("\\u")) {
    scan.skip(2);
    const char32_t second = read_hex4(scan);
    if (second >= 0xDC00 && second <= 0xDFFF) {
      return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
  }
  scan.fail("\\u gives half of a surrogate pair", start,
            "give both halves, or the character itself");
}

void read_escape(Scanner& scan, std::string& out) {
  const Place start = scan.place();
  scan.skip(1);
  const char c = scan.take();
  constexpr std::string_view kNames = "\"'\\/bfnrt";
  constexpr std::string_view kBytes = "\"'\\/\b\f\n\r\t";
  if (c == 'u') {
    append_utf8(out, read_code_point(scan));
  } else if (const std::size_t at = kNames.find(c); c != '\0' && at != std::string_view::npos) {
    out += kBytes[at];
  } else {
    scan.fail(fmt::format("\\{} is not a valid escape in a string", quote_for_message({&c, 1})),
              start, "write \\\\ for a backslash");
  }
}

// After the opening '''. The first line break is not part of the string, nor the last; leading
// spaces are cut up to the column of the opening quotes.
std::string read_multi_line(Scanner& scan, Place opened) {
  const std::size_t end = scan.rest().find("'''");
  if (end == std::string_view::npos) {
    scan.fail("a string that begins with ''' is never closed", opened, "close it with '''");
  }
  const std::string_view raw = scan.rest().substr(0, end);
  std::string text;
  bool first = true;
  for (const std::string& piece : split(raw, '\n')) {
    std::string_view line = piece;
    if (line.ends_with('\r')) line.remove_suffix(1);
    int column = 1;
    while (!first && !line.empty() && (line[0] == ' ' || line[0] == '\t') &&
           column < opened.column) {
      line.remove_prefix(1);
      ++column;
    }
    if (!first || !trim(line).empty()) {
      text += line;
      text += '\n';
    }
    first = false;
  }
  if (!text.empty()) text.pop_back();
  // A closing ''' on a line of its own adds no line.
  if (const std::size_t last = text.rfind('\n');
      last != std::string::npos && trim(std::string_view(text).substr(last)).empty()) {
    text.resize(last);
  }
  scan.skip(end + 3);
  return text;
}

// The number that is all of `token`, by the rules of JSON.
std::optional<Value> parse_number(std::string_view token) {
  const std::string_view digits = token.substr(token.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || digits.back() == '.') return {};
  if (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return {};
  if (token.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return {};
  if (digits.find_first_of(".eE") == std::string_view::npos) {
    std::int64_t integer = 0;
    const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), integer);
    if (error == std::errc{} && stop == token.data() + token.size()) return Value(integer);
  }
  double real = 0;
  const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), real);
  if (stop != token.data() + token.size()) return {};
  // A number that no double can hold: infinity or zero says what is left of it.
  if (error == std::errc::result_out_of_range) {
    const bool tiny =
        digits.find("e-") != std::string_view::npos || digits.find("E-") != std::string_view::npos;
    real = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    return Value(token.starts_with('-') ? -real : real);
  }
  return error == std::errc{} ? std::optional<Value>(Value(real)) : std::nullopt;
}

std::optional<Value> parse_literal(std::string_view token) {
  if (token == "true" || token == "True") return Value(true);
  if (token == "false" || token == "False") return Value(false);
  if (token == "null" || token == "None") return Value();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (token == "Infinity") return Value(kInfinity);
  if (token == "-Infinity") return Value(-kInfinity);
  if (token == "NaN") return Value(std::numeric_limits<double>::quiet_NaN());
  return parse_number(token);
}

bool ends_value(std::string_view rest) {
  return rest.empty() || rest[0] == ',' || rest[0] == '}' || rest[0] == ']' || rest[0] == '\n' ||
         rest[0] == '#' || rest.starts_with("//") || rest.starts_with("/*");
}

}  // namespace

std::string quote_for_message(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::size_t size = std::min(text.size(), kMost);
  while (size < text.size() && size > 0 &&
         (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) {
    --size;
  }
  std::string out(text.substr(0, size));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  if (size < text.size()) out += "...";
  return out;
}

std::string read_quoted(Scanner& scan, const std::function<std::string()>& open_keys) {
  const Place opened = scan.place();
  if (scan.starts_with("'''")) {
    scan.skip(3);
    return read_multi_line(scan, opened);
  }
  const char quote = scan.take();
  std::string text;
  while (scan.peek() != quote || scan.at_end()) {
    if (scan.at_end() || scan.peek() == '\n') {
      const std::string keys = open_keys();
      const std::string inside = keys.empty() ? "" : fmt::format(" (inside {})", keys);
      scan.fail(
          fmt::format("a string is not closed on its line{}", inside), opened,
          fmt::format("add the closing {}; if the text ends here, it was cut off: copy all of it",
                      quote));
    }
    if (scan.peek() == '\\') {
      read_escape(scan, text);
    } else {
      text += scan.take();
    }
  }
  scan.skip(1);
  return text;
}

Value read_unquoted(Scanner& scan) {
  const Place start = scan.place();
  // Not up to the line's end before it is needed: a text of millions of numbers may be one line.
  const std::string_view rest = scan.rest();
  const std::size_t token_size = std::min(rest.find_first_of(" \t\r\n,}]#/"), rest.size());
  const std::string_view token = rest.substr(0, token_size);
  const std::size_t gap = std::min(rest.find_first_not_of(" \t\r", token_size), rest.size());
  if (ends_value(rest.substr(gap))) {
    if (std::optional<Value> literal = parse_literal(token)) {
      scan.skip(token_size);
      return *literal;
    }
  }
  const std::string_view line = rest.substr(0, rest.find('\n'));
  const std::string_view text = trim(line);
  if (const std::size_t next = text.find('"');
      next != std::string_view::npos && text.find(':', next) != std::string_view::npos) {
    scan.fail(fmt::format("\"{}\" and a key are on the same line", quote_for_message(trim(token))),
              start, "put a comma between them, and quotes around strings");
  }
  scan.skip(line.size());
  Value value{std::string(text)};
  value.quoted = false;
  return value;
}

}  // namespace capstan::json
