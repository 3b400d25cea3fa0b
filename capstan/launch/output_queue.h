// Bytes on their way to a terminal, file, pipe or socket that may be slow. Never blocks for long:
// a stuck reader must not keep the launcher from stopping its ranks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "capstan/launch/poller.h"

namespace capstan::launch {

class OutputQueue {
 public:
  // `fd` is not owned and stays open while this lives; `poller` must outlive this.
  OutputQueue(Poller& poller, int fd) : poller_(poller), fd_(fd) {}
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;
  ~OutputQueue() { poller_.unwatch_writable(fd_); }

  void add(std::string_view bytes);
  // Readers of ranks pause while this holds, so that a flood ends in the rank's own pipe.
  bool is_full() const { return pending_.size() - sent_ > kFullBytes; }
  bool is_empty() const { return pending_.size() == sent_; }
  bool is_broken() const { return error_ != 0; }
  int error() const { return error_; }  // why: EPIPE where nobody reads any more, ENOSPC, …

 private:
  static constexpr std::size_t kFullBytes = 1 << 20;
  void send();

  Poller& poller_;
  int fd_;
  std::string pending_;
  std::size_t sent_ = 0;  // bytes of pending_ that are gone
  int error_ = 0;
};

}  // namespace capstan::launch
