#include "capstan/cli/train/stop_request.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/job_signals.h"

namespace capstan::cli::train {
namespace {

// Without those that whoever started this program wants it to ignore, as nohup does.
sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, kPeerFailedSignal}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
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
    std::array<signalfd_siginfo, 8> infos{};
    const ssize_t got = ::read(signals_, infos.data(), sizeof infos);
    if (got <= 0) continue;
    const std::span came(infos.data(), static_cast<std::size_t>(got) / sizeof infos.front());
    const bool alone = std::ranges::any_of(
        came, [](const signalfd_siginfo& info) { return info.ssi_signo == kPeerFailedSignal; });
    const int number = alone ? SIGTERM : static_cast<int>(came.front().ssi_signo);
    if (alone || !deferring_ || seen()) {
      unblock();
      std::raise(number);  // its usual effect, on all threads
      continue;
    }
    number_ = number;
    told_();
  }
}

}  // namespace capstan::cli::train
