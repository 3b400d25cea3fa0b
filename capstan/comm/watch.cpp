#include "capstan/comm/watch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

namespace capstan::comm {
namespace {

constexpr std::chrono::milliseconds kLookEvery{500};
constexpr std::chrono::seconds kLongInFlight{1};
constexpr int kOrderEveryLooks = 4;
// A store serves thousands of ranks; each compares itself with some of its neighbours only, and a
// rank that differs has neighbours too.
constexpr int kComparedPeers = 32;
constexpr const char* kGaveUp = "gave up";  // the key of the first rank's reason

std::string bytes_of(const OpFacts& facts) {
  static_assert(std::is_trivially_copyable_v<OpFacts>);  // it travels as bytes
  return {reinterpret_cast<const char*>(&facts), sizeof(facts)};
}

std::optional<OpFacts> facts_of(const std::optional<std::string>& bytes) {
  OpFacts facts;
  if (!bytes || bytes->size() != sizeof(facts)) return std::nullopt;
  std::memcpy(&facts, bytes->data(), sizeof(facts));
  return facts;
}

}  // namespace

Watch::Watch(std::shared_ptr<SideChannel> channel, Place place,
             std::function<void(const std::string&)> on_failure)
    : channel_(std::move(channel)),
      place_(place),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Watch::~Watch() {
  thread_.request_stop();
  thread_.join();
  std::unique_lock lock(mutex_);
  tell_reason(lock);  // a rank that gives up often ends at once
}

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
  history_.add(facts);
  watched_.push_back({++last_number_, facts, &work, std::chrono::steady_clock::now()});
  return {*this, last_number_};
}

Watch::Ticket Watch::add_to_peer(c10d::Work& work) {
  const std::lock_guard lock(mutex_);
  to_peers_.push_back({--last_to_peer_, {}, &work, std::chrono::steady_clock::now()});
  return {*this, last_to_peer_};
}

void Watch::give_up(std::string reason) {
  const std::lock_guard lock(mutex_);
  own_reason_ = std::move(reason);
  wake_.notify_all();
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
  const auto is_it = [number](const Watched& op) { return op.number == number; };
  std::erase_if(number < 0 ? to_peers_ : watched_, is_it);
}

void Watch::run(const std::stop_token& stop) {
  bool failed = false;
  std::unique_lock lock(mutex_);
  for (int look = 1; !stop.stop_requested(); ++look) {
    wake_.wait_for(lock, stop, kLookEvery, [this] { return !own_reason_.empty(); });
    tell_reason(lock);
    if (failed) continue;
    std::string reason = look_at_oldest(lock);
    if (reason.empty()) reason = look_at_peers(lock);
    if (reason.empty() && look % kOrderEveryLooks == 0) reason = look_at_order(lock);
    if (reason.empty()) continue;
    failed = true;
    lock.unlock();
    on_failure_(reason);
    lock.lock();
  }
}

void Watch::tell_reason(std::unique_lock<std::mutex>& lock) {
  if (own_reason_.empty()) return;
  const std::string reason = std::exchange(own_reason_, {});
  lock.unlock();
  use_channel([&] { channel_->post(kGaveUp, reason); });
  lock.lock();
}

// A channel is lost with the rank that kept it, which the peers see by other signs; the timeout
// remains. Asking again could take long each time.
void Watch::use_channel(const std::function<void()>& use) {
  if (channel_lost_) return;
  try {
    use();
  } catch (const std::exception&) {
    channel_lost_ = true;
  }
}

std::string Watch::look_at_oldest(std::unique_lock<std::mutex>& lock) {
  // Young ones are left alone: over some backends the question costs a thread.
  const auto long_ago = std::chrono::steady_clock::now() - kLongInFlight;
  std::erase_if(watched_,
                [&](const Watched& op) { return op.issued <= long_ago && op.completed(); });
  if (watched_.empty() || watched_.front().issued > long_ago) return {};
  Watched oldest = watched_.front();  // those behind it wait for it
  lock.unlock();
  std::string reason;
  use_channel([&] { reason = compare(oldest); });
  const std::chrono::duration<double> age = std::chrono::steady_clock::now() - oldest.issued;
  if (reason.empty() && age > place_.timeout) {
    reason = fmt::format("rank {}: {} did not finish within {:.1f} s", place_.rank,
                         to_text(oldest.facts), age.count());
  }
  lock.lock();
  const auto same = std::ranges::find(watched_, oldest.number, &Watched::number);
  if (same != watched_.end()) same->posted = oldest.posted;
  return reason;
}

std::string Watch::compare(Watched& op) {
  if (const auto reason = channel_->read(kGaveUp)) return *reason;
  if (!op.posted) {
    channel_->post(fmt::format("{}.{}", op.number, place_.rank), bytes_of(op.facts));
    op.posted = true;
  }
  for (int step = 1; step < std::min(place_.size, kComparedPeers); ++step) {
    const int peer = (place_.rank + step) % place_.size;
    const auto theirs = facts_of(channel_->read(fmt::format("{}.{}", op.number, peer)));
    if (theirs && !same_collective(op.facts, *theirs)) {
      return mismatch_text(op.number, {place_.rank, op.facts}, {peer, *theirs});
    }
  }
  return {};
}

std::string Watch::look_at_peers(std::unique_lock<std::mutex>& lock) {
  std::erase_if(to_peers_, [](const Watched& op) { return op.completed(); });
  if (to_peers_.empty() ||
      std::chrono::steady_clock::now() - to_peers_.front().issued < kLongInFlight) {
    return {};
  }
  lock.unlock();
  std::optional<std::string> reason;
  use_channel([&] { reason = channel_->read(kGaveUp); });
  lock.lock();
  return reason.value_or("");
}

// Equal orders are equal all round when each rank's is equal to the next one's.
std::string Watch::look_at_order(std::unique_lock<std::mutex>& lock) {
  const std::string page = history_.last_page();
  if (page.empty() || place_.size == 1) return {};
  const int next = (place_.rank + 1) % place_.size;
  lock.unlock();
  std::optional<std::string> theirs;
  use_channel([&] {
    channel_->post(fmt::format("order.{}", place_.rank), page);
    theirs = channel_->read(fmt::format("order.{}", next));
  });
  lock.lock();
  return theirs ? history_.compare(place_.rank, next, *theirs) : "";
}

}  // namespace capstan::comm
