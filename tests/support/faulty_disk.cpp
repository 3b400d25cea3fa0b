// A library to preload into a program: reads and writes of its swap files meet the faults that
// CAPSTAN_FAULTY_DISK names, for a whole run of the real program.
//   short          every transfer moves a third of what was asked for
//   slow           every transfer takes some milliseconds longer
//   EIO:5, ENOSPC:5  from the fifth transfer on, reads and writes fail (ENOSPC: writes only)
// CAPSTAN_FAULTY_RANK: only on this rank. CAPSTAN_FAULTY_AFTER: only once this file is there.
// io_uring is told to be absent: its transfers pass no function that could be replaced.
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

using Read = ssize_t (*)(int, void*, std::size_t, off_t);
using Write = ssize_t (*)(int, const void*, std::size_t, off_t);

template <typename Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_swap_file(int fd) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(link.c_str(), path, sizeof path - 1) > 0 &&
         std::strstr(path, "/capstan-swap-") != nullptr;
}

bool is_active() {
  const std::string rank = setting("CAPSTAN_FAULTY_RANK");
  const std::string after = setting("CAPSTAN_FAULTY_AFTER");
  return (rank.empty() || rank == setting("RANK")) &&
         (after.empty() || ::access(after.c_str(), F_OK) == 0);
}

// The errno of a transfer that is to fail, else 0; `bytes` may become fewer.
int meet_fault(int fd, bool writes, std::size_t& bytes) {
  static std::atomic<int> transfers = 0;  // of this process
  const std::string fault = setting("CAPSTAN_FAULTY_DISK");
  if (fault.empty() || !is_swap_file(fd) || !is_active()) return 0;
  if (fault == "short") bytes = std::max<std::size_t>(1, bytes / 3);
  if (fault == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(3));
  const std::size_t colon = fault.find(':');
  if (colon == std::string::npos) return 0;
  const bool full = fault.starts_with("ENOSPC");
  if (full && !writes) return 0;
  if (++transfers < std::atoi(fault.c_str() + colon + 1)) return 0;
  return full ? ENOSPC : EIO;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) {
  static const auto kCall = original<Read>("pread");
  errno = meet_fault(fd, /*writes=*/false, bytes);
  return errno != 0 ? -1 : kCall(fd, data, bytes, offset);
}

ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) {
  static const auto kCall = original<Write>("pwrite");
  errno = meet_fault(fd, /*writes=*/true, bytes);
  return errno != 0 ? -1 : kCall(fd, data, bytes, offset);
}

ssize_t pread64(int fd, void* data, std::size_t bytes, off_t offset) {
  return pread(fd, data, bytes, offset);
}

ssize_t pwrite64(int fd, const void* data, std::size_t bytes, off_t offset) {
  return pwrite(fd, data, bytes, offset);
}

int io_uring_queue_init_params(unsigned /*entries*/, void* /*ring*/, void* /*params*/) {
  return -ENOSYS;
}

int io_uring_queue_init(unsigned /*entries*/, void* /*ring*/, unsigned /*flags*/) {
  return -ENOSYS;
}
}
