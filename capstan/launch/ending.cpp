#include "capstan/launch/ending.h"

#include <csignal>

#include <fmt/format.h>
#include <sys/wait.h>

#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number)
                         : fmt::format("signal {}, SIG{}", number, name);
}

// What usually is behind a signal, where it has a usual cause.
std::string usual_cause(int number) {
  switch (number) {
    case SIGSEGV:
      return ": it accessed memory that it does not own";
    case SIGABRT:
      return ": it aborted itself (a failed check or an uncaught exception; see above)";
    case SIGBUS:
      return ": often a full /dev/shm or a truncated mapped file; see df -h /dev/shm";
    case SIGILL:
      return ": it was built for another kind of CPU";
    case SIGFPE:
      return ": an integer division by zero";
    default:
      return "";
  }
}

std::string memory_sentence(const Ending& ending) {
  const std::string limit =
      ending.memory_limit_bytes > 0
          ? fmt::format(", limit {} ({})", format_bytes(ending.memory_limit_bytes),
                        ending.memory_limit_name)
          : std::string();
  return fmt::format(
      "was killed for host memory: peak RSS {}{}. Use less host memory: fewer ranks per host (-n), "
      "optimizer state or parameters offloaded to NVMe instead of the CPU, or fewer data loader "
      "workers; or raise the limit",
      format_bytes(ending.peak_rss_bytes), limit);
}

}  // namespace

Ending ending_from_status(int status) {
  Ending ending;
  if (WIFSIGNALED(status)) {
    ending.signal = WTERMSIG(status);
  } else {
    ending.exit_code = WEXITSTATUS(status);
  }
  return ending;
}

std::string describe(const Ending& ending) {
  if (ending.signal == 0) return fmt::format("exited with code {}", ending.exit_code);
  if (ending.signal == SIGKILL && ending.out_of_memory) return memory_sentence(ending);
  if (ending.signal == SIGKILL) {
    return fmt::format(
        "was killed from outside (signal 9, SIGKILL); the kernel reports no lack of memory; peak "
        "RSS {}",
        format_bytes(ending.peak_rss_bytes));
  }
  return fmt::format("was ended by {}{}", signal_name(ending.signal), usual_cause(ending.signal));
}

}  // namespace capstan::launch
