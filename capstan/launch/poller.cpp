#include "capstan/launch/poller.h"

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <poll.h>

#include "capstan/base/error.h"

namespace capstan::launch {

void Poller::watch_readable(int fd, Handler handler) { watches_[fd].readable = std::move(handler); }
void Poller::watch_writable(int fd, Handler handler) { watches_[fd].writable = std::move(handler); }

void Poller::unwatch_readable(int fd) {
  watches_[fd].readable = nullptr;
  drop_if_idle(fd);
}

void Poller::unwatch_writable(int fd) {
  watches_[fd].writable = nullptr;
  drop_if_idle(fd);
}

void Poller::drop_if_idle(int fd) {
  const Watch& watch = watches_[fd];
  if (!watch.readable && !watch.writable) watches_.erase(fd);
}

void Poller::wait(std::chrono::milliseconds timeout) {
  std::vector<pollfd> polled;
  for (const auto& [fd, watch] : watches_) {
    const int events = (watch.readable ? POLLIN : 0) | (watch.writable ? POLLOUT : 0);
    polled.push_back({.fd = fd, .events = static_cast<short>(events), .revents = 0});
  }
  const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
  if (ready < 0 && errno != EINTR) {
    throw InternalError({.what = std::string("poll: ") + std::strerror(errno)});
  }
  if (ready <= 0) return;
  for (const pollfd& entry : polled) {
    // Looked up again for each call: an earlier handler may have dropped this watch. Copied,
    // because a handler may drop itself while it runs.
    if ((entry.revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) != 0) {
      const auto found = watches_.find(entry.fd);
      if (found != watches_.end() && found->second.readable) {
        const Handler handler = found->second.readable;
        handler();
      }
    }
    if ((entry.revents & (POLLOUT | POLLHUP | POLLERR | POLLNVAL)) != 0) {
      const auto found = watches_.find(entry.fd);
      if (found != watches_.end() && found->second.writable) {
        const Handler handler = found->second.writable;
        handler();
      }
    }
  }
}

}  // namespace capstan::launch
