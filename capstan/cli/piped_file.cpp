#include "capstan/cli/piped_file.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"
#include "capstan/launch/fd.h"

namespace capstan::cli {
namespace {

constexpr std::size_t kMaxNameBytes = 200;  // Linux takes 249

// Also a plain file that is this program's stdin: ranks have another one.
bool is_read_once(const std::string& path) {
  if (path == "/dev/stdin") return true;
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void write_all(int fd, const char* bytes, std::size_t count, const std::string& from) {
  while (count > 0) {
    const ssize_t written = ::write(fd, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw io::io_failure({.verb = "keep a copy of", .file = from}, errno);
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

// The number of a file in memory, left open: it goes with the process, also through exec.
int keep_in_memory(const std::string& path) {
  const launch::Fd from(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from.is_open()) throw io::io_failure({.verb = "open", .file = path}, errno);
  // Whoever meets a problem in it can tell the name that the user gave (base/shown_path.h).
  const int memory = ::memfd_create(path.substr(0, kMaxNameBytes).c_str(), 0);
  if (memory < 0) throw io::io_failure({.verb = "keep a copy of", .file = path}, errno);
  std::array<char, 64 << 10> buffer;  // NOLINT: filled by read()
  while (true) {
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got == 0) return memory;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw io::io_failure({.verb = "read", .file = path}, errno);
    write_all(memory, buffer.data(), static_cast<std::size_t>(got), path);
  }
}

}  // namespace

std::vector<std::string> keep_piped_files(const std::vector<FileOption>& options) {
  std::vector<std::string> words;
  for (const FileOption& option : options) {
    if (!is_read_once(*option.path)) continue;
    *option.path = fmt::format("/proc/{}/fd/{}", ::getpid(), keep_in_memory(*option.path));
    words.insert(words.end(), {option.flag, *option.path});
  }
  return words;
}

void refuse_piped_elsewhere(const std::vector<std::string>& words) {
  if (words.empty()) return;
  throw ConfigError(
      {.what = "a pipe can be read on this machine only, but some ranks run on other machines",
       .where = words.front(),
       .fix = "write it to a file that all machines can read"});
}

}  // namespace capstan::cli
