#include "capstan/io/durable.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "capstan/io/failure.h"
#include "capstan/io/file.h"

namespace capstan::io {
namespace {

std::filesystem::path folder_holding(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  return folder.empty() ? "." : folder;
}

void write_all(const File& file, std::span<const std::byte> bytes, DurableCalls& calls) {
  std::int64_t offset = 0;
  while (!bytes.empty()) {
    const ssize_t moved = calls.pwrite(file.descriptor()->fd(), bytes, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      throw io_failure(
          {.verb = "write", .file = file.path(), .offset = offset, .bytes = std::ssize(bytes)},
          moved == 0 ? EIO : errno);
    }
    offset += moved;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
}

void sync_descriptor(int fd, const std::filesystem::path& path, DurableCalls& calls) {
  while (calls.fsync(fd) != 0) {
    if (errno != EINTR) throw io_failure({.verb = "fsync", .file = path}, errno);
  }
}

}  // namespace

ssize_t DurableCalls::pwrite(int fd, std::span<const std::byte> bytes, std::int64_t offset) {
  return ::pwrite(fd, bytes.data(), bytes.size(), offset);
}

int DurableCalls::fsync(int fd) { return ::fsync(fd); }

int DurableCalls::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::rename(from.c_str(), to.c_str());
}

int DurableCalls::exchange(const std::filesystem::path& a, const std::filesystem::path& b) {
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

void write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes,
                   DurableCalls& calls) {
  std::filesystem::path partial = path;
  partial += ".partial";
  std::error_code stale;
  std::filesystem::remove(partial, stale);  // a link there, say: nothing is written through it
  try {
    write_all(File::open(partial, {.access = Access::create}), bytes, calls);
    commit_file(partial, path, calls);
  } catch (const IoError&) {
    std::error_code ignored;  // the first failure is the one to tell
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

void write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  DurableCalls calls;
  write_durably(path, bytes, calls);
}

void commit_file(const std::filesystem::path& partial, const std::filesystem::path& path,
                 DurableCalls& calls) {
  {
    const File file = File::open(partial, {.access = Access::read_only});
    sync_descriptor(file.descriptor()->fd(), partial, calls);
  }
  if (calls.rename(partial, path) != 0)
    throw io_failure({.verb = "rename to", .file = path}, errno);
  sync_folder(folder_holding(path), calls);
}

void commit_file(const std::filesystem::path& partial, const std::filesystem::path& path) {
  DurableCalls calls;
  commit_file(partial, path, calls);
}

void sync_folder(const std::filesystem::path& folder, DurableCalls& calls) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw io_failure({.verb = "open", .file = folder}, errno);
  const Descriptor closes(folder, fd, /*direct_fd=*/-1);
  sync_descriptor(fd, folder, calls);
}

}  // namespace capstan::io
