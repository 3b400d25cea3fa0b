// Ranks as threads of one process, for tests.
#pragma once

#include <chrono>
#include <functional>

#include "capstan/comm/group.h"
#include "capstan/comm/loopback/loopback.h"

namespace capstan {

struct RunRanksOptions {
  std::chrono::milliseconds timeout{60'000};
  comm::LoopbackOptions loopback;
};

// Calls fn(group) on n threads, each with its own rank of one group over loopback. When a rank
// throws, the group is aborted, so that the others end too; the first rank's own error (not the
// CommErrors that follow from it) is rethrown.
void run_ranks(int n, const std::function<void(comm::Group&)>& fn, RunRanksOptions options = {});

}  // namespace capstan
