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
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "capstan/comm/op.h"
#include "capstan/comm/side_channel.h"

namespace capstan::comm {

// Owns:    a thread that sleeps but for a look twice a second; costs an operation nothing else.
//          It never owns a work: to drop the last one drops tensors, perhaps of Python, and for
//          those this thread would need a lock whose holder may be waiting for us.
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

  // An operation under watch, until the ticket goes: the work must live as long.
  class [[nodiscard]] Ticket {
   public:
    Ticket() = default;  // watches nothing
    Ticket(Watch& watch, std::int64_t number) : watch_(&watch), number_(number) {}
    Ticket(Ticket&& other) noexcept
        : watch_(std::exchange(other.watch_, nullptr)), number_(other.number_) {}
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { release(); }

    explicit operator bool() const { return watch_ != nullptr; }
    void release();
    // Ends this ticket; `done` tells from here on when the operation has ended.
    void follow(c10::Event done);

   private:
    Watch* watch_ = nullptr;
    std::int64_t number_ = 0;
  };

  // Collectives in the order of their issue.
  Ticket add(const OpFacts& facts, c10d::Work& work);

 private:
  struct Watched {
    std::int64_t number;
    OpFacts facts;
    c10d::Work* work;  // the ticket's; null once there is an event
    std::chrono::steady_clock::time_point issued;
    bool posted = false;
    std::shared_ptr<c10::Event> done = nullptr;

    bool completed() const { return done != nullptr ? done->query() : work->isCompleted(); }
  };
  void follow(std::int64_t number, c10::Event done);
  void forget(std::int64_t number);
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
