#include "capstan/io/space.h"

#include <cerrno>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "capstan/base/text.h"
#include "capstan/io/failure.h"

namespace capstan::io {

std::int64_t free_bytes(const std::filesystem::path& folder) {
  // A file has a disk too, but the caller means to put files there.
  if (std::error_code error; !std::filesystem::is_directory(folder, error)) {
    const bool exists = std::filesystem::exists(folder, error);
    throw IoError({.what = fmt::format("\"{}\" {}", folder.string(),
                                       exists ? "is not a folder" : "does not exist"),
                   .where = folder.string(),
                   .fix = exists ? "name a folder" : "mkdir -p " + folder.string()});
  }
  struct statvfs facts{};
  while (::statvfs(folder.c_str(), &facts) != 0) {
    if (errno != EINTR) throw io_failure({.verb = "statvfs", .file = folder}, errno);
  }
  const auto blocks = static_cast<std::uint64_t>(facts.f_bavail);
  const auto block_bytes = static_cast<std::uint64_t>(facts.f_frsize);
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (block_bytes != 0 && blocks > most / block_bytes) return static_cast<std::int64_t>(most);
  return static_cast<std::int64_t>(blocks * block_bytes);
}

void require_free_bytes(const std::filesystem::path& folder, std::int64_t needed_bytes,
                        std::string_view purpose) {
  const std::int64_t available = free_bytes(folder);
  if (available >= needed_bytes) return;
  throw IoError({.what = fmt::format("{} has {} free, but {} are needed for {}", folder.string(),
                                     format_bytes(available), format_bytes(needed_bytes), purpose),
                 .where = folder.string(),
                 .fix = fmt::format("free {} there, or name a folder on a larger disk",
                                    format_bytes(needed_bytes - available))});
}

}  // namespace capstan::io
