// The launcher's side of its agents: who has said hello, what they report, what they are told.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capstan/launch/line_splitter.h"
#include "capstan/launch/network.h"
#include "capstan/launch/output_queue.h"
#include "capstan/launch/poller.h"
#include "capstan/launch/wire.h"

namespace capstan::launch {

// What a connection may take before it has shown the token. Anybody who reaches the port can open
// one, so that these must neither fill the memory nor use up the open files.
struct StrangerLimits {
  std::size_t bytes = 4096;  // far above any hello
  std::chrono::milliseconds patience{30000};
  std::size_t count = 256;  // at a time; others wait in the kernel's queue
};

// Agents that connect back over the network. Connections that do not begin with the right token
// are closed. Threads: one.
class Links {
 public:
  using Clock = std::chrono::steady_clock;
  using OnMessage = std::function<void(std::size_t link, const Message& message)>;
  using OnLost = std::function<void(std::size_t link)>;

  // `poller` must outlive this. on_message gets every message after the hello, and the hello.
  Links(Poller& poller, bool this_machine_only, OnMessage on_message, OnLost on_lost,
        const StrangerLimits& limits = {});
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  ~Links();

  // For the environment of whoever starts the agents.
  std::string address() const;
  const std::string& token() const { return token_; }

  void send_all(const Message& message);
  std::size_t open_count() const;  // of agents; strangers do not count
  void tick();                     // closes strangers that have said nothing for too long
  std::optional<Clock::time_point> next_due() const;
  void pause_output(bool pause);  // stops reading; senders then wait in their own pipes

 private:
  struct Link {
    Fd socket;
    LineSplitter lines{false, kMaxMessageBytes};
    std::unique_ptr<OutputQueue> out;
    Clock::time_point since;
    std::size_t received = 0;  // counted until the hello
    bool greeted = false;
  };

  std::size_t strangers() const;
  void listen(bool listens);
  void accept_all();
  void read_some(std::size_t index);
  void watch(std::size_t index);
  void take_line(std::size_t index, std::string_view line);
  void close(std::size_t index);

  Poller& poller_;
  OnMessage on_message_;
  OnLost on_lost_;
  bool this_machine_only_;
  StrangerLimits limits_;
  Listener listener_;
  std::string token_;
  bool paused_ = false;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace capstan::launch
