#include "capstan/launch/output_queue.h"

#include <algorithm>
#include <cerrno>

#include <poll.h>
#include <unistd.h>

namespace capstan::launch {
namespace {

bool is_writable_now(int fd) {
  pollfd polled{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

}  // namespace

void OutputQueue::add(std::string_view bytes) {
  if (is_broken() || bytes.empty()) return;
  // Sent at the next round of waiting, many lines at once.
  if (is_empty()) poller_.watch_writable(fd_, [this] { send(); });
  pending_.append(bytes);
}

void OutputQueue::send() {
  // The fd may be in blocking mode and shared with the user's shell, so its mode is left alone: a
  // writable pipe takes a page without blocking.
  constexpr std::size_t kPageBytes = 4096;
  while (!is_broken() && !is_empty() && is_writable_now(fd_)) {
    const std::size_t size = std::min(kPageBytes, pending_.size() - sent_);
    const ssize_t written = ::write(fd_, pending_.data() + sent_, size);
    if (written >= 0) {
      sent_ += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  if (is_broken() || is_empty()) {
    pending_.clear();
    sent_ = 0;
    poller_.unwatch_writable(fd_);
  } else if (sent_ > kFullBytes) {
    pending_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace capstan::launch
