#include "capstan/checkpoint/folder_lock.h"

#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {
namespace {

io::File open_lock_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
  const std::filesystem::path path = folder / ".lock";
  // Made where it is missing, never emptied: somebody else may hold it.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw io::io_failure({.verb = "open", .file = path}, errno);
  ::close(fd);
  return io::File::open(path, {.access = io::Access::read_write});
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(folder), file_(open_lock_file(folder)) {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file_.descriptor()->fd(), F_SETLK, &whole) != 0) {
    if (errno != EACCES && errno != EAGAIN) {
      throw io::io_failure({.verb = "lock", .file = file_.path()}, errno);
    }
    const std::string holder = read_text(file_, 0, file_.size_bytes());
    throw ConfigError({.what = fmt::format("another job saves into this folder: {}", trim(holder)),
                       .where = folder.string(),
                       .fix = "give each job a folder of its own"});
  }
  file_.resize(0);
  io::DurableCalls calls;
  const std::string holder = fmt::format("process {} on {}\n", ::getpid(), host_name());
  write_bytes(file_, 0, std::as_bytes(std::span(holder)), calls);
}

}  // namespace capstan::checkpoint
