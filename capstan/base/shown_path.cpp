#include "capstan/base/shown_path.h"

#include <string_view>
#include <system_error>

namespace capstan {

std::string shown_path(const std::filesystem::path& path) {
  constexpr std::string_view kBegin = "/memfd:";
  constexpr std::string_view kEnd = " (deleted)";
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(path, error).string();
  if (error || !target.starts_with(kBegin) || !target.ends_with(kEnd)) return path.string();
  return target.substr(kBegin.size(), target.size() - kBegin.size() - kEnd.size());
}

}  // namespace capstan
