#include "capstan/cli/train/stop_request.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include <sys/signalfd.h>
#include <unistd.h>

#include "capstan/base/error.h"

namespace capstan::cli::train {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

StopRequest::StopRequest() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) {
    throw IoError({.what = std::string("cannot watch for Ctrl-C: ") + std::strerror(errno),
                   .where = "signalfd",
                   .fix = "raise the limit of open files"});
  }
}

StopRequest::~StopRequest() {
  close(fd_);
  unblock();
}

bool StopRequest::seen() {
  if (seen_) return true;
  signalfd_siginfo info{};
  if (read(fd_, &info, sizeof(info)) == sizeof(info)) {
    seen_ = true;
    unblock();
  }
  return seen_;
}

void StopRequest::unblock() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace capstan::cli::train
