// The launcher's side of its agents: who has said hello, what they report, what they are told.
#pragma once

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

// Agents that connect back over the network. Connections that do not begin with the right token
// are closed. Threads: one.
class Links {
 public:
  using OnMessage = std::function<void(std::size_t link, const Message& message)>;
  using OnLost = std::function<void(std::size_t link)>;

  // `poller` must outlive this. on_message gets every message after the hello, and the hello.
  Links(Poller& poller, bool this_machine_only, OnMessage on_message, OnLost on_lost);
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  ~Links();

  // For the environment of whoever starts the agents.
  std::string address() const;
  const std::string& token() const { return token_; }

  void send_all(const Message& message);
  std::size_t open_count() const;
  void pause_output(bool pause);  // stops reading; senders then wait in their own pipes

 private:
  struct Link {
    Fd socket;
    LineSplitter lines{false, kMaxMessageBytes};
    std::unique_ptr<OutputQueue> out;
    bool greeted = false;
  };

  void accept_all();
  void read_some(std::size_t index);
  void watch(std::size_t index);
  void take_line(std::size_t index, std::string_view line);
  void close(std::size_t index);

  Poller& poller_;
  OnMessage on_message_;
  OnLost on_lost_;
  bool this_machine_only_;
  Listener listener_;
  std::string token_;
  bool paused_ = false;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace capstan::launch
