// A file without a disk, for readers that take a path.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace capstan::test {

class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no memory file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void set(const std::string& bytes) const {
    if (::ftruncate(fd_, 0) != 0 ||
        ::pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("cannot write the memory file");
    }
  }

 private:
  int fd_;
};

}  // namespace capstan::test
