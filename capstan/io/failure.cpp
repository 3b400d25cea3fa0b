#include "capstan/io/failure.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

namespace capstan::io {
namespace {

std::string folder_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.parent_path();
  return folder.empty() ? "." : folder.string();
}

// The nearest that is still there afterwards: a folder in the making is hidden, and goes when that
// fails.
std::string lasting_folder_of(const std::filesystem::path& file) {
  std::filesystem::path folder = folder_of(file);
  while (folder.filename().string().size() > 2 && folder.filename().string().front() == '.') {
    folder = folder_of(folder);
  }
  return folder.string();
}

std::string fix_for(const FailedCall& call, int error_number) {
  const std::string folder = folder_of(call.file);
  switch (error_number) {
    case ENOSPC:
      return fmt::format("free space on the disk of {0} (df -h {0}), or choose another folder",
                         lasting_folder_of(call.file));
    case EDQUOT:
      return fmt::format("your quota on the disk of {} is used up (quota -s); free space", folder);
    case EFBIG:
      return "the file system or `ulimit -f` allows no file of this size; raise it or change disk";
    case EIO:
      return fmt::format(
          "the disk of {} failed; look at dmesg and smartctl -a, then use another disk", folder);
    case EACCES:
    case EPERM:
      return fmt::format("give this user the right to {} it (ls -ld {} {})", call.verb, folder,
                         call.file.string());
    case EROFS:
      return fmt::format("{} is on a read-only file system; choose another folder", folder);
    case ENOENT:
      return fmt::format("create it first (mkdir -p {}), or correct the path", folder);
    case ENOTDIR:
    case EISDIR:
      return "correct the path: a folder was found where a file belongs, or the reverse";
    case EMFILE:
    case ENFILE:
      return "too many open files; raise the limit (ulimit -n 65536)";
    case EBADF:
      return "the file was opened without the right to do this; open it with Access::read_write";
    case ESTALE:
    case ENXIO:
    case ENODEV:
      return fmt::format("the file system of {} went away; mount it again", folder);
    default:
      return fmt::format("check the disk and the mount of {} (dmesg, findmnt -T {})", folder,
                         folder);
  }
}

std::string place_of(const FailedCall& call) {
  if (call.offset == kNoOffset) return call.file.string();
  return fmt::format("{}, offset {}", call.file.string(), call.offset);
}

}  // namespace

std::string errno_text(int error_number) {
  const char* name = strerrorname_np(error_number);
  const std::string message = std::generic_category().message(error_number);
  return name == nullptr ? fmt::format("errno {} ({})", error_number, message)
                         : fmt::format("{} ({})", name, message);
}

IoError io_failure(const FailedCall& call, int error_number) {
  const std::string amount = call.bytes > 0 ? fmt::format(" of {} bytes", call.bytes) : "";
  return IoError(
      {.what = fmt::format("{}{} failed: {}", call.verb, amount, errno_text(error_number)),
       .where = place_of(call),
       .fix = fix_for(call, error_number)});
}

IoError unexpected_end(const FailedCall& call) {
  return IoError({.what = fmt::format("the file ends {} bytes too early", call.bytes),
                  .where = place_of(call),
                  .fix = "the file was cut short; restore it, or let the program write it again"});
}

}  // namespace capstan::io
