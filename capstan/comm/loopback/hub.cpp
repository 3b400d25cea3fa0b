#include "capstan/comm/loopback/hub.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::comm {
namespace {

void copy_part(const Arrival& to, const Arrival& from, std::int64_t out_part, std::int64_t in_part,
               std::size_t bytes) {
  if (!to.out.is_cpu()) {
    const auto elems = static_cast<std::int64_t>(bytes / to.out.element_size());
    to.out.narrow(0, out_part * elems, elems).copy_(from.in.narrow(0, in_part * elems, elems));
    return;
  }
  auto* out = static_cast<std::byte*>(to.out.mutable_data_ptr()) + out_part * bytes;
  const auto* in = static_cast<const std::byte*>(from.in.const_data_ptr()) + in_part * bytes;
  if (out != in && bytes > 0) {
    std::memcpy(out, in, bytes);
  }
}

void move_bytes(const std::vector<Arrival>& meeting) {
  const auto size = static_cast<std::int64_t>(meeting.size());
  for (const Arrival& to : meeting) {
    for (const Arrival& from : meeting) {
      switch (to.movement) {
        case Movement::none:
          break;
        case Movement::gather:
          copy_part(to, from, from.rank, 0, from.in.nbytes());
          break;
        case Movement::exchange_others:
          if (to.rank == from.rank) break;
          [[fallthrough]];
        case Movement::exchange:
          copy_part(to, from, from.rank, to.rank, from.in.nbytes() / size);
          break;
        case Movement::from_root:
          if (from.rank == to.facts.peer) copy_part(to, from, 0, 0, from.in.nbytes());
          break;
        case Movement::to_peer:
          if (to.facts.kind == OpKind::recv && from.facts.kind == OpKind::send) {
            copy_part(to, from, 0, 0, from.in.nbytes());
          }
          break;
      }
    }
  }
}

std::string name_ranks(const std::vector<Arrival>& meeting) {
  std::string text;
  for (const Arrival& arrival : meeting) {
    text += fmt::format("{}rank {} issued {}", text.empty() ? "" : "; ", arrival.rank,
                        to_text(arrival.facts));
  }
  return text;
}

void finish_all(std::vector<Arrival>& meeting) {
  move_bytes(meeting);
  for (Arrival& arrival : meeting) {
    // Let go first: when its owner sees the end, nobody else holds its buffers.
    arrival.in.reset();
    arrival.out.reset();
    arrival.work->complete();
  }
}

}  // namespace

LoopbackHub::LoopbackHub(int size, LoopbackOptions options)
    : size_(size), options_(std::move(options)), issued_(size), last_issued_(size) {
  if (options_.delay) {
    delayer_ = std::jthread([this](const std::stop_token& stop) { run_delayed(stop); });
  }
}

// Throws only where memory is out, which ends the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
LoopbackHub::~LoopbackHub() { abort("all ranks of the group are gone"); }

void LoopbackHub::arrive(Arrival arrival) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) {
    fail_locked(arrival);
    return;
  }
  const std::int64_t number = ++issued_[arrival.rank];
  last_issued_[arrival.rank] = arrival.facts;
  Meeting& meeting = meetings_[number];
  const bool matches = meeting.empty() || (meeting[0].movement == arrival.movement &&
                                           same_collective(meeting[0].facts, arrival.facts));
  meeting.push_back(std::move(arrival));
  if (!matches) {
    const Arrival& first = meeting.front();
    const Arrival& last = meeting.back();
    abort_locked(mismatch_text(number, {first.rank, first.facts}, {last.rank, last.facts}));
  } else if (static_cast<int>(meeting.size()) == size_) {
    Meeting complete = std::move(meeting);
    meetings_.erase(number);
    start_locked(std::move(complete), lock);
  }
}

void LoopbackHub::arrive_at_peer(Arrival arrival) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) {
    fail_locked(arrival);
    return;
  }
  last_issued_[arrival.rank] = arrival.facts;
  const bool sends = arrival.facts.kind == OpKind::send;
  const std::pair<int, int> direction = sends ? std::pair(arrival.rank, arrival.facts.peer)
                                              : std::pair(arrival.facts.peer, arrival.rank);
  std::deque<Arrival>& waiting = peers_[direction];
  if (waiting.empty() || waiting.front().facts.kind == arrival.facts.kind) {
    waiting.push_back(std::move(arrival));
    return;
  }
  Meeting meeting;
  meeting.push_back(std::move(waiting.front()));
  waiting.pop_front();
  meeting.push_back(std::move(arrival));
  if (meeting[0].facts.elems != meeting[1].facts.elems ||
      meeting[0].facts.dtype != meeting[1].facts.dtype) {
    const std::string ranks = name_ranks(meeting);
    for (Arrival& side : meeting) {
      waiting.push_front(std::move(side));  // so that the abort reaches them
    }
    abort_locked("send and recv do not match: " + ranks);
    return;
  }
  start_locked(std::move(meeting), lock);
}

void LoopbackHub::start_locked(Meeting meeting, std::unique_lock<std::mutex>& lock) {
  if (!options_.delay) {
    lock.unlock();
    finish_all(meeting);
    return;
  }
  // As on a link, operations follow each other.
  const auto free_from =
      std::max(std::chrono::steady_clock::now(),
               due_.empty() ? std::chrono::steady_clock::time_point{} : due_.back().at);
  const auto delay = options_.delay(meeting[0].facts);
  due_.push_back({.at = free_from + delay, .meeting = std::move(meeting)});
  due_changed_.notify_one();
}

void LoopbackHub::run_delayed(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (due_changed_.wait(lock, stop, [this] { return !due_.empty(); })) {
    const auto at = due_.front().at;
    due_changed_.wait_until(lock, stop, at, [] { return false; });
    if (stop.stop_requested() || due_.empty()) {
      continue;  // an abort emptied the queue meanwhile
    }
    Meeting meeting = std::move(due_.front().meeting);
    due_.pop_front();
    lock.unlock();
    finish_all(meeting);
    meeting.clear();
    lock.lock();
  }
}

void LoopbackHub::abort(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  abort_locked(reason);
}

void LoopbackHub::abort_locked(std::string_view reason) {
  if (!failure_.empty()) {
    return;
  }
  failure_ = reason;
  const auto fail_all = [this](auto& arrivals) {
    for (Arrival& arrival : arrivals) fail_locked(arrival);
  };
  for (auto& [number, meeting] : meetings_) fail_all(meeting);
  for (auto& [direction, waiting] : peers_) fail_all(waiting);
  for (Due& due : due_) fail_all(due.meeting);
  meetings_.clear();
  peers_.clear();
  due_.clear();
}

void LoopbackHub::fail_locked(Arrival& arrival) const {
  arrival.work->fail(std::make_exception_ptr(CommError(
      {.what = failure_,
       .where = fmt::format("loopback, rank {}: {}", arrival.rank, to_text(arrival.facts)),
       .fix = "see the error of the rank named first"})));
}

std::string LoopbackHub::explain_stall() {
  const std::lock_guard lock(mutex_);
  if (meetings_.empty()) {
    return {};
  }
  const std::int64_t number = meetings_.begin()->first;
  std::string text = fmt::format("collective #{} was not issued by", number);
  for (int rank = 0; rank < size_; ++rank) {
    if (issued_[rank] < number) {
      text += issued_[rank] == 0 ? fmt::format(" rank {} (nothing issued yet)", rank)
                                 : fmt::format(" rank {} (its last operation: {})", rank,
                                               to_text(last_issued_[rank]));
    }
  }
  return text;
}

}  // namespace capstan::comm
