#include "capstan/comm/watch.h"

#include <algorithm>

#include <fmt/format.h>

namespace capstan::comm {
namespace {

constexpr std::chrono::milliseconds kLookEvery{500};
constexpr std::chrono::seconds kLongInFlight{1};
// A store serves thousands of ranks; each compares itself with some of its neighbours only, and a
// rank that differs has neighbours too.
constexpr int kComparedPeers = 32;

// What must be equal; the label is for people.
std::string fingerprint(const OpFacts& facts) {
  return fmt::format("{} {} {} {}|", to_string(facts.kind), facts.elems, dtype_name(facts.dtype),
                     facts.peer);
}

}  // namespace

Watch::Watch(std::shared_ptr<SideChannel> channel, Place place,
             std::function<void(const std::string&)> on_failure)
    : channel_(std::move(channel)),
      place_(place),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Watch::Ticket& Watch::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    release();
    watch_ = std::exchange(other.watch_, nullptr);
    number_ = other.number_;
  }
  return *this;
}

void Watch::Ticket::release() {
  if (Watch* const watch = std::exchange(watch_, nullptr)) watch->forget(number_);
}

void Watch::Ticket::follow(c10::Event done) {
  if (Watch* const watch = std::exchange(watch_, nullptr)) watch->follow(number_, std::move(done));
}

Watch::Ticket Watch::add(const OpFacts& facts, c10d::Work& work) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({++last_number_, facts, &work, std::chrono::steady_clock::now()});
  return {*this, last_number_};
}

void Watch::follow(std::int64_t number, c10::Event done) {
  auto event = std::make_shared<c10::Event>(std::move(done));
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(watched_, number, &Watched::number);
  if (found == watched_.end()) return;
  found->done = std::move(event);
  found->work = nullptr;
}

void Watch::forget(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [number](const Watched& op) { return op.number == number; });
}

void Watch::run(const std::stop_token& stop) {
  bool channel_lost = false;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, kLookEvery, [] { return false; });
    std::erase_if(watched_, [](const Watched& op) { return op.completed(); });
    if (watched_.empty() ||
        std::chrono::steady_clock::now() - watched_.front().issued < kLongInFlight) {
      continue;
    }
    // Only the oldest: those behind it wait for it.
    Watched oldest = watched_.front();
    lock.unlock();
    std::string reason;
    try {
      if (!channel_lost) reason = compare(oldest);
    } catch (const std::exception&) {
      channel_lost = true;  // with the rank that kept it: the timeout remains
    }
    const std::chrono::duration<double> age = std::chrono::steady_clock::now() - oldest.issued;
    if (reason.empty() && age > place_.timeout) {
      reason = fmt::format("rank {}: {} did not finish within {:.1f} s", place_.rank,
                           to_text(oldest.facts), age.count());
    }
    if (!reason.empty()) {
      on_failure_(reason);
      return;
    }
    lock.lock();
    const auto same = std::ranges::find(watched_, oldest.number, &Watched::number);
    if (same != watched_.end()) same->posted = oldest.posted;
  }
}

std::string Watch::compare(Watched& op) {
  const std::string ours = fingerprint(op.facts);
  if (!op.posted) {
    channel_->post(fmt::format("{}.{}", op.number, place_.rank), ours + to_text(op.facts));
    op.posted = true;
  }
  for (int step = 1; step < std::min(place_.size, kComparedPeers); ++step) {
    const int peer = (place_.rank + step) % place_.size;
    const auto theirs = channel_->read(fmt::format("{}.{}", op.number, peer));
    if (theirs && !theirs->starts_with(ours)) {
      const std::string text = theirs->substr(theirs->find('|') + 1);
      return fmt::format("collective #{} does not match: rank {} issued {}; rank {} issued {}",
                         op.number, place_.rank, to_text(op.facts), peer, text);
    }
  }
  return {};
}

}  // namespace capstan::comm
