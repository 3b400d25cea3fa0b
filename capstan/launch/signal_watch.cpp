#include "capstan/launch/signal_watch.h"

#include <cerrno>
#include <cstring>

#include <sys/signalfd.h>

#include "capstan/base/error.h"

namespace capstan::launch {

SignalWatch::SignalWatch() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    // Blocked, a signal would come in even where nohup or a shell's "&" made us ignore it.
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&watched, number);
  }
  fd_ = Fd(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw IoError({.what = std::string("signalfd: ") + std::strerror(errno),
                   .where = "launcher",
                   .fix = "raise the limit of open files: ulimit -n 4096"});
  }
  sigprocmask(SIG_BLOCK, &watched, &original_mask_);
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &original_pipe_action_);
  // Children of a process that ignores SIGCHLD leave no exit code behind.
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &original_child_action_);
}

SignalWatch::~SignalWatch() {
  // What came in after the end was meant for this job: an unread SIGCHLD would be harmless, an
  // unread second Ctrl-C would end the program before it could return its exit code.
  while (take()) {
  }
  sigaction(SIGPIPE, &original_pipe_action_, nullptr);
  sigaction(SIGCHLD, &original_child_action_, nullptr);
  sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
}

std::optional<int> SignalWatch::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return {};
  return static_cast<int>(info.ssi_signo);
}

}  // namespace capstan::launch
