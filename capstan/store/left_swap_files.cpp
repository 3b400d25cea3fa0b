#include "capstan/store/left_swap_files.h"

#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "capstan/io/failure.h"

namespace capstan::store {

int remove_left_swap_files(const std::filesystem::path& folder) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(kSwapPrefix)) continue;
    const int fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;  // of another user, or just gone
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && std::filesystem::remove(entry.path(), error)) {
      ++removed;
    }
    ::close(fd);
  }
  if (error) throw io::io_failure({.verb = "clean", .file = folder}, error.value());
  return removed;
}

}  // namespace capstan::store
