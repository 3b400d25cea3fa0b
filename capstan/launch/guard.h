// A small process that outlives the launcher by a moment: if the launcher is killed (kill -9), it
// kills the process groups of the ranks, helpers of ranks included.
#pragma once

#include <sys/types.h>

#include "capstan/launch/fd.h"

namespace capstan::launch {

class Guard {
 public:
  Guard();  // throws IoError when no process can be started
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();  // lets the guard go without killing anything

  pid_t pid() const { return pid_; }
  void add(pid_t group);  // only a system call: a child may call it between fork and exec
  void remove(pid_t group);

 private:
  void tell(pid_t group, bool add);

  pid_t pid_ = -1;
  Fd orders_;
};

}  // namespace capstan::launch
