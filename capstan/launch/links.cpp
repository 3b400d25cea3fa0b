#include "capstan/launch/links.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

std::string make_token() {
  std::random_device random;  // the kernel's generator
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Links::Links(Poller& poller, bool this_machine_only, OnMessage on_message, OnLost on_lost,
             const StrangerLimits& limits)
    : poller_(poller),
      on_message_(std::move(on_message)),
      on_lost_(std::move(on_lost)),
      this_machine_only_(this_machine_only),
      limits_(limits),
      listener_(this_machine_only),
      token_(make_token()) {
  listen(true);
}

Links::~Links() {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i]->socket.is_open()) close(i);
  }
  listen(false);
}

std::string Links::address() const {
  const std::vector<std::string> addresses =
      this_machine_only_ ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
  return fmt::format("{}:{}", fmt::join(addresses, ","), listener_.port());
}

void Links::send_all(const Message& message) {
  for (const auto& link : links_) {
    if (link->greeted && link->out) link->out->add(encode(message));
  }
}

std::size_t Links::open_count() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      links_, [](const auto& link) { return link->greeted && link->socket.is_open(); }));
}

std::size_t Links::strangers() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      links_, [](const auto& link) { return !link->greeted && link->socket.is_open(); }));
}

void Links::listen(bool listens) {
  if (listens) {
    poller_.watch_readable(listener_.fd(), [this] { accept_all(); });
  } else {
    poller_.unwatch_readable(listener_.fd());
  }
}

void Links::accept_all() {
  for (std::size_t open = strangers(); open < limits_.count; ++open) {
    std::optional<Fd> socket = listener_.accept();
    if (!socket) return;
    auto link = std::make_unique<Link>();
    link->socket = *std::move(socket);
    link->since = Clock::now();
    // The place of a stranger that is gone: nobody knows its number.
    auto place = std::ranges::find_if(
        links_, [](const auto& old) { return !old->greeted && !old->socket.is_open(); });
    if (place == links_.end()) place = links_.insert(place, nullptr);
    *place = std::move(link);
    watch(static_cast<std::size_t>(place - links_.begin()));
  }
  listen(false);
}

void Links::tick() {
  if (paused_) return;  // then it is we who do not listen
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const Link& link = *links_[i];
    const bool late = !link.greeted && now >= link.since + limits_.patience;
    if (late && link.socket.is_open()) close(i);
  }
}

std::optional<Links::Clock::time_point> Links::next_due() const {
  std::optional<Clock::time_point> due;
  if (paused_) return due;
  for (const auto& link : links_) {
    if (link->greeted || !link->socket.is_open()) continue;
    due = std::min(due.value_or(Clock::time_point::max()), link->since + limits_.patience);
  }
  return due;
}

void Links::watch(std::size_t index) {
  if (paused_) return;
  poller_.watch_readable(links_[index]->socket.get(), [=, this] { read_some(index); });
}

void Links::pause_output(bool pause) {
  if (pause == paused_) return;
  paused_ = pause;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->socket.is_open()) continue;
    if (pause) {
      poller_.unwatch_readable(links_[i]->socket.get());
    } else {
      watch(i);
    }
  }
}

void Links::read_some(std::size_t index) {
  Link& link = *links_[index];
  std::array<char, 64 << 10> buffer;  // NOLINT: filled by read()
  const ssize_t got = ::read(link.socket.get(), buffer.data(), buffer.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const bool was_greeted = link.greeted;
    close(index);
    if (was_greeted) on_lost_(index);
    return;
  }
  if (!link.greeted) link.received += static_cast<std::size_t>(got);
  link.lines.feed({buffer.data(), static_cast<std::size_t>(got)},
                  [&](std::string_view line, char) { take_line(index, line); });
  if (!link.greeted && link.received > limits_.bytes && link.socket.is_open()) close(index);
}

void Links::take_line(std::size_t index, std::string_view line) {
  Link& link = *links_[index];
  if (!link.socket.is_open()) return;  // closed by an earlier line of the same read
  if (!link.greeted) {
    try {
      link.greeted = hello_from_message(decode(line)).token == token_;
    } catch (const CommError&) {
      link.greeted = false;
    }
    if (!link.greeted) {  // a port scanner, or another job's agent
      close(index);
      return;
    }
    link.out = std::make_unique<OutputQueue>(poller_, link.socket.get());
    listen(true);
  }
  on_message_(index, decode(line));
}

void Links::close(std::size_t index) {
  Link& link = *links_[index];
  poller_.unwatch_readable(link.socket.get());
  link.out.reset();
  link.socket.reset();
  if (!link.greeted) listen(true);
}

}  // namespace capstan::launch
