// Ranks as threads of one process: a c10d::Backend over shared memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "capstan/comm/op.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace capstan::comm {

struct LoopbackOptions {
  // How long an operation takes after the last rank has issued it; unset: no time. For tests of
  // overlap. Called with a lock held; must not call back.
  std::function<std::chrono::nanoseconds(const OpFacts&)> delay;
};

class LoopbackHub;  // where the ranks of one group meet

std::shared_ptr<LoopbackHub> make_loopback_hub(int size, LoopbackOptions options = {});

// The backend of one rank. Issuing never blocks: the last rank to arrive moves the bytes (with a
// delay: a thread of the hub does).
c10::intrusive_ptr<c10d::Backend> make_loopback(std::shared_ptr<LoopbackHub> hub, int rank);

}  // namespace capstan::comm
