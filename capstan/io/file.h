// An open file: one descriptor through the page cache and, where the file system has it, one past
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace capstan::io {

enum class Access {
  read_only,   // must exist
  read_write,  // must exist
  create       // made new or emptied; read and write
};

struct OpenOptions {
  Access access = Access::read_only;
  bool direct = false;  // true: aligned transfers bypass the page cache where the disk allows it
};

// The descriptors behind a File. Shared by the File and by its requests in flight, so that closing
// a File early never lets the kernel write to a descriptor number that was given out anew.
// Threads: any.
class Descriptor {
 public:
  Descriptor(std::filesystem::path path, int fd, int direct_fd);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_; }
  int direct_fd() const { return direct_fd_; }
  bool direct() const { return direct_works_; }
  // Some file systems accept O_DIRECT at open and refuse the first transfer.
  void refuse_direct() { direct_works_ = false; }

 private:
  std::filesystem::path path_;
  int fd_;
  int direct_fd_;  // -1: none
  std::atomic<bool> direct_works_;
};

// Owns:    the file's descriptors (moved, never copied).
// Threads: one at a time; its requests may run on any thread.
class File {
 public:
  // Throws IoError with the path, the errno and the fix.
  static File open(const std::filesystem::path& path, const OpenOptions& options);
  // Over a descriptor that was opened with flags of its own; closes it.
  static File adopt(const std::filesystem::path& path, int fd);

  File(File&&) noexcept = default;
  File& operator=(File&&) noexcept = default;

  const std::filesystem::path& path() const { return descriptor_->path(); }
  bool direct() const { return descriptor_->direct(); }
  std::int64_t size_bytes() const;

  void resize(std::int64_t bytes);
  // Takes the disk space now, so that a full disk shows here and not in the middle of the work.
  // Where the file system cannot, only the size is set.
  void reserve(std::int64_t bytes);
  // Returns when everything written is on the disk.
  void sync();
  // Forgets cached pages, so that the next read comes from the disk.
  void drop_cache();

  const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }

 private:
  explicit File(std::shared_ptr<Descriptor> descriptor);
  std::shared_ptr<Descriptor> descriptor_;
};

}  // namespace capstan::io
