// Finds mismatched collectives over backends that cannot tell by themselves: an operation that is
// in flight for long is described in a side channel, and compared with what the peers wrote there.
// Private to comm.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "capstan/comm/op.h"
#include "capstan/comm/side_channel.h"

namespace capstan::comm {

// Owns:    a thread that sleeps but for a look twice a second; costs an operation nothing else.
// Threads: any.
class Watch {
 public:
  struct Place {
    int rank;
    int size;
    std::chrono::milliseconds timeout{600'000};
  };
  // Calls on_failure(reason) at most once, from its own thread: a mismatch, or an operation that is
  // in flight for longer than the timeout.
  Watch(std::shared_ptr<SideChannel> channel, Place place,
        std::function<void(const std::string&)> on_failure);

  // Collectives in the order of their issue. Gives the number of the operation.
  std::int64_t add(const OpFacts& facts, c10::intrusive_ptr<c10d::Work> work);
  // From here on `done` tells when it has ended: a work would hold its tensors until we look.
  void follow(std::int64_t number, c10::Event done);

 private:
  struct Watched {
    std::int64_t number;
    OpFacts facts;
    c10::intrusive_ptr<c10d::Work> work;  // null once there is an event
    std::chrono::steady_clock::time_point issued;
    bool posted = false;
    std::shared_ptr<c10::Event> done = nullptr;

    bool completed() const { return done != nullptr ? done->query() : work->isCompleted(); }
  };
  void run(const std::stop_token& stop);
  // The reason when `op` does not match a peer's; empty when nothing speaks against it.
  std::string compare(Watched& op);

  const std::shared_ptr<SideChannel> channel_;
  const Place place_;
  const std::function<void(const std::string&)> on_failure_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::vector<Watched> watched_;
  std::int64_t last_number_ = 0;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace capstan::comm
