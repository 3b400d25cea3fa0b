#include "capstan/monitor/written_file.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <unistd.h>

#include "capstan/base/error.h"

namespace capstan::monitor {
namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  const fs::path place = folder.empty() ? "." : folder;
  if (!error && ::access(place.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (!error) return;
  throw IoError({.what = "cannot write into the folder of a monitor: " + error.message(),
                 .where = place.string(),
                 .fix = "name a folder that can be made and written to"});
}

void check_written(const std::ofstream& file, const fs::path& path) {
  if (!file) {
    const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
    throw IoError({.what = "cannot write" + why,
                   .where = path.string(),
                   .fix = "free some disk space, or name another place"});
  }
  std::error_code ignored;
  if (fs::exists(path, ignored)) return;
  throw IoError({.what = "the file was deleted while it was written",
                 .where = path.string(),
                 .fix = "leave the files of a running job in place"});
}

}  // namespace capstan::monitor
