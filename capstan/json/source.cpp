// Where a text comes from: a file, a string, base64.
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/shown_path.h"
#include "capstan/base/text.h"
#include "capstan/json/literal.h"
#include "capstan/json/reader.h"

namespace capstan::json {
namespace {

// The six bits that a letter of either base64 alphabet stands for, or -1.
int base64_bits(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.empty() || text.size() % 4 == 1) return {};
  std::string bytes;
  unsigned window = 0;
  int window_bits = 0;
  for (const char c : text) {
    const int bits = base64_bits(c);
    if (bits < 0) return {};
    window = (window << 6 | static_cast<unsigned>(bits)) & 0xFFFF;
    window_bits += 6;
    if (window_bits >= 8) {
      window_bits -= 8;
      bytes += static_cast<char>(window >> window_bits & 0xFF);
    }
  }
  return bytes;
}

// Of a file or a pipe; no more of it than is allowed is read.
std::string bounded_text(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 64 << 10> buffer;  // NOLINT: filled by read()
  while (file && text.size() <= kMaxTextBytes) {
    file.read(buffer.data(), buffer.size());
    text.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (text.size() > kMaxTextBytes) {
    throw ConfigError(
        {.what = fmt::format("the file has more than {}", format_bytes(kMaxTextBytes)),
         .where = name,
         .fix = "check that this is the right file"});
  }
  if (file.is_open() && !file.bad()) return text;
  throw IoError({.what = fmt::format("the file cannot be read: {}", std::strerror(errno)),
                 .where = name,
                 .fix = "check its permissions"});
}

bool is_existing_path(const std::string& text) {
  std::error_code error;  // a text too long for a path is no path
  return std::filesystem::exists(text, error) && !error;
}

}  // namespace

Document read_file(const std::filesystem::path& path) {
  const std::string name = shown_path(path);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw ConfigError({.what = "there is no such file",
                       .where = name,
                       .fix = fmt::format("check the path; the current folder is {}",
                                          std::filesystem::current_path(error).string())});
  }
  if (std::filesystem::is_directory(status)) {
    throw ConfigError(
        {.what = "this is a folder", .where = name, .fix = "give the path of a file in it"});
  }
  return read_document(bounded_text(path, name), name);
}

Document read_argument(const std::string& argument) {
  if (is_existing_path(argument)) return read_file(argument);
  const std::string_view text = trim(argument);
  if (text.starts_with('{')) return read_document(text, "config text");
  // No letter of base64 is a dot: this was meant to be a file.
  if (text.find('.') != std::string_view::npos) return read_file(argument);
  if (const auto bytes = decode_base64(text)) {
    const std::string_view decoded = trim(*bytes);
    if (decoded.starts_with('{')) return read_document(decoded, "base64 config");
  }
  throw ConfigError({.what = fmt::format("\"{}\" is not a configuration", quote_for_message(text)),
                     .where = "config",
                     .fix =
                         "give the path of an existing file, JSON text that begins with {, or such "
                         "text in base64"});
}

}  // namespace capstan::json
