// Signals to this process as readable events instead of interruptions.
#pragma once

#include <optional>

#include <csignal>

#include "capstan/launch/fd.h"

namespace capstan::launch {

// While it lives: SIGCHLD, and those of SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 that
// were not ignored before, are held back and come out of take(); SIGPIPE is ignored. Destruction
// restores what was there.
// Threads: the program's only one (other threads would still be interrupted).
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  int fd() const { return fd_.get(); }
  std::optional<int> take();  // the next pending signal, if any

  // The mask a child process starts with.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  sigset_t original_mask_{};
  struct sigaction original_pipe_action_{};
  struct sigaction original_child_action_{};
  Fd fd_;
};

}  // namespace capstan::launch
