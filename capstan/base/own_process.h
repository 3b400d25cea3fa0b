// Which process made a thing: threads, connections and pinned memory do not follow a fork.
#pragma once

#include <unistd.h>

namespace capstan {

class OwnProcess {
 public:
  bool is_here() const { return getpid() == maker_; }
  // Throws ConfigError in a forked child; `what` names the thing.
  void check(const char* what) const;

 private:
  pid_t maker_ = getpid();
};

}  // namespace capstan
