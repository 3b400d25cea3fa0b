// Starts one process of a plan: own session, own pipes, bound cores.
#pragma once

#include <csignal>

#include <sys/types.h>

#include "capstan/launch/fd.h"
#include "capstan/launch/guard.h"
#include "capstan/launch/plan.h"

namespace capstan::launch {

// The ends that stay with us; non-blocking. `input` is open only for an agent on a pipe: ranks
// read /dev/null.
struct Child {
  pid_t pid = -1;  // also its process group and session
  Fd input;
  Fd output;
  Fd error;
};

// The child dies with us even if we are killed (SIGKILL), and starts with the signal mask `mask`.
// The guard knows its group before it runs anything. Throws IoError when it cannot be started,
// naming the reason.
Child start_child(const Process& process, const sigset_t& mask, Guard& guard);

}  // namespace capstan::launch
