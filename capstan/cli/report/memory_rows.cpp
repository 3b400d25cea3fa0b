#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "capstan/base/text.h"
#include "capstan/cli/report/machine_rows.h"
#include "capstan/cli/report/system_files.h"

namespace capstan::cli {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
// Chosen: below it NCCL and Open MPI fail to set up their shared buffers with a few ranks.
constexpr std::int64_t kLeastSharedBytes = 512 * kMiB;
// Chosen: io_uring's rings of a deep queue on kernels that count them as locked memory.
constexpr std::int64_t kLeastLockedBytes = kMiB;

Row bytes_row(std::string name, std::int64_t bytes) {
  return {.section = "memory",
          .name = std::move(name),
          .value = format_bytes(bytes),
          .number = static_cast<double>(bytes),
          .unit = "bytes"};
}

Row shared_memory_row() {
  struct statvfs facts{};
  if (::statvfs("/dev/shm", &facts) != 0) {
    return {.section = "memory",
            .name = "/dev/shm",
            .state = RowState::failed,
            .value = "not there",
            .fix = "mount -t tmpfs -o size=8G tmpfs /dev/shm"};
  }
  const auto total = static_cast<std::int64_t>(facts.f_blocks * facts.f_frsize);
  const auto free = static_cast<std::int64_t>(facts.f_bavail * facts.f_frsize);
  Row row = bytes_row("/dev/shm", total);
  row.value += fmt::format(", {} free", format_bytes(free));
  if (free < kLeastSharedBytes) {
    row.state = RowState::failed;
    row.fix = total < kLeastSharedBytes
                  ? "mount -o remount,size=8G /dev/shm (docker run --shm-size=8g)"
                  : "remove what ended programs have left there (ls -l /dev/shm)";
  }
  return row;
}

Row locked_memory_row() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) {
    return {.section = "memory", .name = "locked memory limit", .value = "unlimited"};
  }
  Row row = bytes_row("locked memory limit", static_cast<std::int64_t>(limit.rlim_cur));
  if (row.number < static_cast<double>(kLeastLockedBytes)) {
    row.state = RowState::failed;
    row.fix = "ulimit -l unlimited (for all logins: a memlock line in /etc/security/limits.conf)";
  }
  return row;
}

}  // namespace

std::vector<Row> memory_rows() {
  std::vector<Row> rows;
  const std::int64_t total = read_kib_as_bytes("/proc/meminfo", "MemTotal").value_or(0);
  rows.push_back(bytes_row("host memory", total));
  if (const auto available = read_kib_as_bytes("/proc/meminfo", "MemAvailable")) {
    rows.back().value += fmt::format(", {} available", format_bytes(*available));
  }
  // v2, then v1; a limit above the machine's memory is no limit.
  auto limit = read_number("/sys/fs/cgroup/memory.max");
  if (!limit) limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  if (limit && *limit < total) rows.push_back(bytes_row("limit of this container", *limit));
  rows.push_back(shared_memory_row());
  rows.push_back(locked_memory_row());
  return rows;
}

}  // namespace capstan::cli
