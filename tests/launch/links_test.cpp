#include "capstan/launch/links.h"

#include <cerrno>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

namespace capstan::launch {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

// An agent on a busy machine, too, is heard within it.
constexpr milliseconds kShort{1000};

// A launcher's end that notes what agents say.
struct Home {
  explicit Home(const StrangerLimits& limits)
      : links(
            poller, /*this_machine_only=*/true,
            [this](std::size_t, const Message& message) { heard.push_back(message.verb); },
            [this](std::size_t) { heard.emplace_back("lost"); }, limits) {}

  // As a job waits: no longer than until something is due.
  void turn() {
    milliseconds patience(20);  // the other end is in this thread: it must have its turn too
    if (const auto due = links.next_due()) {
      const auto left = std::chrono::ceil<milliseconds>(*due - Links::Clock::now());
      patience = std::clamp(left, milliseconds(0), patience);
    }
    poller.wait(patience);
    links.tick();
  }
  Fd connect() { return connect_to(links.address()); }
  void greet(const Fd& socket, const std::string& token) {
    const std::string hello = encode(hello_message({0, token, 1, "here"}));
    EXPECT_EQ(::send(socket.get(), hello.data(), hello.size(), 0), std::ssize(hello));
  }

  std::vector<std::string> heard;
  Poller poller;
  Links links;
};

// Whether the launcher has closed its end; lets it work meanwhile, for two minutes at most.
bool is_closed(Home& home, const Fd& socket) {
  const auto end = Links::Clock::now() + std::chrono::minutes(2);
  while (Links::Clock::now() < end) {
    home.turn();
    char byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, 1, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
  }
  return false;
}

void hear(Home& home, std::size_t messages) {
  const auto end = Links::Clock::now() + std::chrono::minutes(2);
  while (home.heard.size() < messages && Links::Clock::now() < end) home.turn();
}

TEST(Links, HearOnlyWhoKnowsTheToken) {
  Home home({});
  const Fd liar = home.connect();
  home.greet(liar, "0123");
  EXPECT_TRUE(is_closed(home, liar));
  const Fd agent = home.connect();
  home.greet(agent, home.links.token());
  hear(home, 1);
  EXPECT_THAT(home.heard, ElementsAre("hello"));
  EXPECT_EQ(home.links.open_count(), 1u);
}

TEST(Links, LeaveAStrangerWhoTalksWithoutEnd) {
  Home home({.bytes = 4096, .patience = std::chrono::hours(1)});
  const Fd stranger = home.connect();
  const std::string text(1000, 'x');  // no line ever ends
  std::size_t sent = 0;
  for (bool open = true; open && sent < (64 << 20);) {
    const ssize_t got = ::send(stranger.get(), text.data(), text.size(), MSG_NOSIGNAL);
    open = got > 0 || errno == EAGAIN;
    if (got > 0) sent += static_cast<std::size_t>(got);
    home.turn();
  }
  EXPECT_LT(sent, LineSplitter::kMaxLineBytes);  // whoever speaks in lines is cut off there anyway
  EXPECT_THAT(home.heard, IsEmpty());
}

TEST(Links, LeaveAStrangerWhoSaysNothingAndKeepAnAgentThatDoes) {
  Home home({.patience = kShort});
  const Fd agent = home.connect();
  home.greet(agent, home.links.token());
  hear(home, 1);
  const Fd stranger = home.connect();
  home.turn();
  EXPECT_EQ(home.links.open_count(), 1u);  // a job's end waits for no stranger
  EXPECT_TRUE(is_closed(home, stranger));
  home.links.send_all({"stop", 15, ""});
  home.turn();
  std::string order(64, '\0');
  EXPECT_GT(::recv(agent.get(), order.data(), order.size(), 0), 0);
  EXPECT_THAT(home.heard, ElementsAre("hello"));
}

TEST(Links, TakeAFewStrangersAtATimeAndTheAgentsBehindThem) {
  Home home({.patience = kShort, .count = 2});
  std::vector<Fd> crowd;
  for (int i = 0; i < 6; ++i) crowd.push_back(home.connect());
  const Fd agent = home.connect();
  home.greet(agent, home.links.token());
  hear(home, 1);
  EXPECT_THAT(home.heard, ElementsAre("hello"));
  for (const Fd& stranger : crowd) EXPECT_TRUE(is_closed(home, stranger));
}

}  // namespace
}  // namespace capstan::launch
