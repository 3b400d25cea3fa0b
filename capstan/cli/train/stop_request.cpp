#include "capstan/cli/train/stop_request.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
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

void unblock() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

StopRequest::StopRequest(std::function<void()> told) : told_(std::move(told)) {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  closing_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || closing_ < 0) {
    throw IoError({.what = std::string("cannot watch for Ctrl-C: ") + std::strerror(errno),
                   .where = "signalfd",
                   .fix = "raise the limit of open files"});
  }
  thread_ = std::thread([this] { listen(); });
}

StopRequest::~StopRequest() {
  const std::uint64_t one = 1;
  if (::write(closing_, &one, sizeof one) == sizeof one) thread_.join();
  ::close(closing_);
  ::close(signals_);
  unblock();
}

void StopRequest::listen() {
  std::array<pollfd, 2> both = {pollfd{signals_, POLLIN, 0}, pollfd{closing_, POLLIN, 0}};
  while (true) {
    if (::poll(both.data(), both.size(), /*timeout=*/-1) < 0) continue;
    if (both[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof info) != sizeof info) continue;
    if (!deferring_ || seen_) {
      unblock();
      std::raise(static_cast<int>(info.ssi_signo));  // its usual effect, on all threads
      continue;
    }
    seen_ = true;
    told_();
  }
}

}  // namespace capstan::cli::train
