#include "capstan/launch/guard.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

struct Order {
  pid_t group;  // 0: the job is over, all is well
  bool add;
};

// Runs in the guard. The pipe ends without the closing order only when the launcher was killed.
[[noreturn]] void keep_guard(int orders) {
  setsid();
  prctl(PR_SET_NAME, "capstan-guard");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    signal(number, SIG_IGN);
  }
  // Whoever waits for the end of the launcher's output must not wait for the guard.
  for (int fd = 0; fd < 3; ++fd) {
    if (fd != orders) close(fd);
  }
  std::set<pid_t> groups;
  Order order{};
  while (true) {
    const ssize_t got = read(orders, &order, sizeof order);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof order) break;
    if (order.group == 0) _exit(0);
    if (order.add) {
      groups.insert(order.group);
    } else {
      groups.erase(order.group);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  std::array<int, 2> ends{};
  const bool piped = pipe2(ends.data(), O_CLOEXEC) == 0;
  Fd read_end(piped ? ends[0] : -1);
  orders_ = Fd(piped ? ends[1] : -1);
  pid_ = piped ? fork() : -1;
  if (pid_ < 0) {
    throw IoError({.what = std::string("cannot start a process: ") + std::strerror(errno),
                   .where = "launcher",
                   .fix = "raise the limits of open files and processes (ulimit -n, ulimit -u)"});
  }
  if (pid_ == 0) {
    orders_.reset();
    keep_guard(read_end.get());
  }
}

Guard::~Guard() {
  tell(0, false);
  orders_.reset();
  waitpid(pid_, nullptr, 0);
}

void Guard::add(pid_t group) { tell(group, true); }
void Guard::remove(pid_t group) { tell(group, false); }

void Guard::tell(pid_t group, bool add) {
  const Order order{group, add};
  // Smaller than a pipe's page: written whole or not at all. Without a guard the job still runs.
  [[maybe_unused]] const ssize_t written = write(orders_.get(), &order, sizeof order);
}

}  // namespace capstan::launch
