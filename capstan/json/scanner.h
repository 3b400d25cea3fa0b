// Walks through a text byte by byte, knows the place, and skips white space and comments.
#pragma once

#include <string>
#include <string_view>

#include "capstan/json/value.h"

namespace capstan::json {

// `text` must outlive this. Every failure is a ConfigError that names source, line and column.
class Scanner {
 public:
  Scanner(std::string_view text, std::string source);

  bool at_end() const { return at_ >= text_.size(); }
  // The byte `ahead` of the current one; '\0' past the end (and for a NUL in the text).
  char peek(std::size_t ahead = 0) const;
  char take();
  bool starts_with(std::string_view word) const { return rest().starts_with(word); }
  std::string_view rest() const { return text_.substr(at_); }
  void skip(std::size_t bytes);

  // White space and comments (#, //, /* */).
  void skip_blank();
  // Spaces and tabs of this line only.
  void skip_spaces();

  Place place() const { return place_; }
  const std::string& source() const { return source_; }
  // "file.json:3:14"
  std::string where(Place place) const;

  [[noreturn]] void fail(std::string what, Place place, std::string fix) const;

 private:
  std::string_view text_;
  std::string source_;
  std::size_t at_ = 0;
  Place place_{.line = 1, .column = 1};
};

bool is_utf8(std::string_view text);
// Throws a ConfigError at the first byte that is no UTF-8.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace capstan::json
