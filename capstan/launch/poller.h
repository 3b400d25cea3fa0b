// Waits for many file descriptors at once and calls whoever watches the ready ones.
#pragma once

#include <chrono>
#include <functional>
#include <map>

namespace capstan::launch {

// Threads: one. Handlers may watch and unwatch, themselves included.
class Poller {
 public:
  using Handler = std::function<void()>;

  // Replaces an earlier watch of the same fd and events. The fd must stay open while watched.
  void watch_readable(int fd, Handler handler);  // data, end of file or an error
  void watch_writable(int fd, Handler handler);
  void unwatch_readable(int fd);
  void unwatch_writable(int fd);

  // Waits until something is ready or `timeout` is over, then calls the handlers.
  void wait(std::chrono::milliseconds timeout);

 private:
  struct Watch {
    Handler readable;
    Handler writable;
  };
  void drop_if_idle(int fd);

  std::map<int, Watch> watches_;
};

}  // namespace capstan::launch
