// Reads JSON and Hjson: comments, missing and trailing commas, keys and strings without quotes,
// single and triple quotes, a root without braces, a byte-order mark.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/json/value.h"

namespace capstan::json {

// Deeper nesting is refused: no configuration needs it, and the stack stays small.
inline constexpr int kMaxDepth = 64;
// Larger texts are refused: no configuration is.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

// For texts of other kinds.
struct ReadLimits {
  std::size_t bytes = kMaxTextBytes;
  int depth = kMaxDepth;
};

struct Document {
  Value root;
  std::string source;               // for messages: a file name, or what the text is
  std::vector<ErrorInfo> problems;  // what could be read around: doubled keys, placeholders
  bool blank = false;               // there was nothing but spaces and comments
};

// Reads on after a doubled key (the first one counts) or a placeholder such as [0|1|2|3] (null
// stands for it) and lists them; throws ConfigError where nothing can be read any more.
Document read_document(std::string_view text, const std::string& source,
                       const ReadLimits& limits = {});

// As read_document, but any problem is a ConfigError.
Value read(std::string_view text, const std::string& source, const ReadLimits& limits = {});

// Throws ConfigError when the file is missing, is no file, or is too large; IoError when it cannot
// be read.
Document read_file(const std::filesystem::path& path);

// What a launcher hands over: the name of an existing file, the text itself (begins with '{'), or
// that text in base64 (the URL-safe alphabet or the plain one).
Document read_argument(const std::string& argument);

}  // namespace capstan::json
