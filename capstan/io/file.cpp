#include "capstan/io/file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capstan/io/failure.h"

namespace capstan::io {
namespace {

int flags_for(Access access) {
  switch (access) {
    case Access::read_only:
      return O_RDONLY | O_CLOEXEC;
    case Access::read_write:
      return O_RDWR | O_CLOEXEC;
    case Access::create:
      return O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
  }
  throw InternalError({.what = "unknown Access"});
}

int open_again(const char* path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path, flags, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

Descriptor::Descriptor(std::filesystem::path path, int fd, int direct_fd)
    : path_(std::move(path)), fd_(fd), direct_fd_(direct_fd), direct_works_(direct_fd >= 0) {}

Descriptor::~Descriptor() {
  // Write errors have shown at sync(); close reports nothing that a caller could act on here.
  if (direct_fd_ >= 0) ::close(direct_fd_);
  ::close(fd_);
}

File::File(std::shared_ptr<Descriptor> descriptor) : descriptor_(std::move(descriptor)) {}

File File::open(const std::filesystem::path& path, const OpenOptions& options) {
  const int flags = flags_for(options.access);
  const int fd = open_again(path.c_str(), flags);
  if (fd < 0) throw io_failure({.verb = "open", .file = path}, errno);
  int direct_fd = -1;
  if (options.direct) {
    // A refusal (EINVAL on some file systems) is no error: the cached descriptor does it all.
    direct_fd = open_again(path.c_str(), (flags & ~(O_CREAT | O_TRUNC)) | O_DIRECT);
  }
  return File(std::make_shared<Descriptor>(path, fd, direct_fd));
}

File File::adopt(const std::filesystem::path& path, int fd) {
  return File(std::make_shared<Descriptor>(path, fd, /*direct_fd=*/-1));
}

std::int64_t File::size_bytes() const {
  struct stat facts{};
  if (::fstat(descriptor_->fd(), &facts) != 0) {
    throw io_failure({.verb = "stat", .file = path()}, errno);
  }
  return facts.st_size;
}

void File::resize(std::int64_t bytes) {
  while (::ftruncate(descriptor_->fd(), bytes) != 0) {
    if (errno != EINTR) {
      throw io_failure({.verb = "resize", .file = path(), .bytes = bytes}, errno);
    }
  }
}

void File::reserve(std::int64_t bytes) {
  if (bytes == 0) return;
  while (::fallocate(descriptor_->fd(), 0, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      if (size_bytes() < bytes) resize(bytes);
      return;
    }
    throw io_failure({.verb = "reserve", .file = path(), .bytes = bytes}, errno);
  }
}

void File::sync() {
  while (::fsync(descriptor_->fd()) != 0) {
    if (errno != EINTR) throw io_failure({.verb = "fsync", .file = path()}, errno);
  }
}

void File::drop_cache() {
  // Advice only: a file system without a cache (or a tmpfs) has nothing to forget.
  ::posix_fadvise(descriptor_->fd(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace capstan::io
