// Finds ranks that do different things over backends that cannot tell by themselves: what a rank
// waits for, and what it has issued, is compared with its peers' through a side channel.
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
#include "capstan/comm/op_history.h"
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
  // Calls on_failure(reason) at most once, from its own thread: a mismatch, a peer that gave up, or
  // an operation that is in flight for longer than the timeout.
  Watch(std::shared_ptr<SideChannel> channel, Place place,
        std::function<void(const std::string&)> on_failure);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

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
  // Between this rank and one peer, of whom only it is asked whether somebody gave up: these have
  // no order, and how long they take is up to the two.
  Ticket add_to_peer(c10d::Work& work);
  // Lets the peers know, soon, that this rank takes part no more.
  void give_up(std::string reason);

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
  // Each is called with the lock and lets it go meanwhile; returns why the group has failed, if it
  // has.
  std::string look_at_oldest(std::unique_lock<std::mutex>& lock);
  std::string look_at_order(std::unique_lock<std::mutex>& lock);
  std::string look_at_peers(std::unique_lock<std::mutex>& lock);
  std::string compare(Watched& op);
  void tell_reason(std::unique_lock<std::mutex>& lock);
  void use_channel(const std::function<void()>& use);

  const std::shared_ptr<SideChannel> channel_;
  const Place place_;
  const std::function<void(const std::string&)> on_failure_;
  bool channel_lost_ = false;  // used by the thread, and by the destructor after its end

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::vector<Watched> watched_;
  std::int64_t last_number_ = 0;
  std::vector<Watched> to_peers_;  // under numbers of their own, below 0
  std::int64_t last_to_peer_ = 0;
  OpHistory history_;
  std::string own_reason_;  // why this rank gave up; empty: it has not, or has told
  std::jthread thread_;     // last: ends before what it uses
};

}  // namespace capstan::comm
