// Files that survive a crash: after it, a name holds either its old bytes or all of its new ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include <sys/types.h>

namespace capstan::io {

// The system calls that durability is made of; tests override them to fail at a chosen point.
// Each behaves like the call of its name: -1 and errno on failure.
class DurableCalls {
 public:
  virtual ~DurableCalls() = default;
  virtual ssize_t pwrite(int fd, std::span<const std::byte> bytes, std::int64_t offset);
  virtual int fsync(int fd);
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // Two names in one step; some file systems (NFS) cannot.
  virtual int exchange(const std::filesystem::path& a, const std::filesystem::path& b);
};

// Replaces `path` by `bytes`: writes path + ".partial", fsync, rename, fsync of the folder. On
// failure (IoError) the partial file is gone and `path` is as it was; only where the very last
// fsync fails does it hold the new bytes, maybe not for ever. One writer per path.
void write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes,
                   DurableCalls& calls);
void write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);

// The second half alone, for a file written by other means: `partial` (same folder, complete, not
// yet synced) becomes `path`. On failure `partial` is left to the caller.
void commit_file(const std::filesystem::path& partial, const std::filesystem::path& path,
                 DurableCalls& calls);
void commit_file(const std::filesystem::path& partial, const std::filesystem::path& path);

// Makes the names in `folder` durable: created, renamed and removed ones.
void sync_folder(const std::filesystem::path& folder, DurableCalls& calls);

}  // namespace capstan::io
