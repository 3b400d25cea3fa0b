#include "capstan/cli/report/system_files.h"

#include <charconv>
#include <fstream>

#include "capstan/base/text.h"

namespace capstan::cli {
namespace {

std::optional<std::int64_t> leading_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return number;
}

}  // namespace

std::string read_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return std::string(trim(line));
}

std::optional<std::int64_t> read_kib_as_bytes(const std::filesystem::path& path,
                                              std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    const auto kib = leading_number(trim(std::string_view(line).substr(key.size() + 1)));
    if (kib) return *kib * 1024;
  }
  return std::nullopt;
}

std::optional<std::int64_t> read_number(const std::filesystem::path& path) {
  return leading_number(read_line(path));
}

}  // namespace capstan::cli
