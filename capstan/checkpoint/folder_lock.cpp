#include "capstan/checkpoint/folder_lock.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {
namespace {

// Bytes of the file that stand for the folder and for a save into it.
constexpr off_t kOwnerByte = 0;
constexpr off_t kSaveByte = 1;

io::File open_lock_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
  const std::filesystem::path path = folder / ".lock";
  // Made where it is missing, never emptied: somebody else may hold it. No link is followed, and
  // nothing but a plain file of this one name is written to: a folder may come from elsewhere.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd < 0 && errno != ELOOP) throw io::io_failure({.verb = "open", .file = path}, errno);
  struct stat facts{};
  if (fd < 0 || ::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_nlink != 1) {
    if (fd >= 0) ::close(fd);
    throw ConfigError({.what = "the lock file of the folder is a link or not a regular file",
                       .where = path.string(),
                       .fix = "remove it if no job saves into this folder, or use another folder"});
  }
  return io::File::adopt(path, fd);
}

// Of the open file, not of the process: two engines of one process are two owners, and one that
// ends does not let go of the other's lock. A forked child shares it until it ends. On NFS the
// server keeps such locks as it keeps those of processes (NFSv4, or lockd with NFSv3); where a
// mount has none (nolock) only jobs of one machine see each other.
bool take(const io::File& file, off_t byte, short type) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  if (::fcntl(file.descriptor()->fd(), F_OFD_SETLK, &range) == 0) return true;
  if (errno == EACCES || errno == EAGAIN) return false;
  throw io::io_failure({.verb = "lock", .file = file.path()}, errno);
}

bool is_still_there(const io::File& file) {
  struct stat named{};
  struct stat opened{};
  return ::lstat(file.path().c_str(), &named) == 0 &&
         ::fstat(file.descriptor()->fd(), &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string own_name() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

// What to add to the name of a holder that has ended: one of its children has not.
std::string if_ended(const std::string& holder) {
  int process = 0;
  std::array<char, 256> host{};
  if (std::sscanf(holder.c_str(), "process %d on %255s", &process, host.data()) != 2) return "";
  const bool ended = host_name() == host.data() && ::kill(process, 0) != 0 && errno == ESRCH;
  return ended ? " (which has ended; a process that it started has not yet)" : "";
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(folder), file_(open_lock_file(folder)) {
  own();
}

void FolderLock::own() {
  if (owned_ && is_still_there(file_)) return;
  if (owned_) file_ = open_lock_file(folder_);  // somebody removed the folder
  owned_ = take(file_, kOwnerByte, F_WRLCK);
  if (!owned_) {
    const std::string holder(trim(read_text(file_, 0, file_.size_bytes())));
    if (holder == own_name()) return;
    throw ConfigError({.what = fmt::format("another job is saving into this folder: {}{}", holder,
                                           if_ended(holder)),
                       .where = folder_.string(),
                       .fix = "give each job a folder of its own"});
  }
  file_.resize(0);
  io::DurableCalls calls;
  const std::string holder = own_name() + "\n";
  write_bytes(file_, 0, std::as_bytes(std::span(holder)), calls);
}

SaveTurn::SaveTurn(const FolderLock& lock) : lock_(lock) {
  if (take(lock.file_, kSaveByte, F_WRLCK)) return;
  throw ConfigError({.what = "another engine of this process is saving into this folder",
                     .where = lock.folder().string(),
                     .fix =
                         "wait for that save (finish_saves), or give each engine a folder of its "
                         "own"});
}

SaveTurn::~SaveTurn() {
  try {
    take(lock_.file_, kSaveByte, F_UNLCK);
    // The file is closed soon, and the lock goes with it.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const IoError&) {
  }
}

}  // namespace capstan::checkpoint
