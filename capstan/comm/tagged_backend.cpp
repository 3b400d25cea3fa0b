#include "capstan/comm/tagged_backend.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/ops/zeros.h>

#include "capstan/base/error.h"

namespace capstan::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// High tags are ours: a program's own sends and receives of the same group use low ones.
constexpr int kOurTags = 1 << 30;

at::Tensor part_of(const at::Tensor& whole, int part, int parts) {
  const std::int64_t elems = whole.numel() / parts;
  return whole.narrow(0, part * elems, elems);
}

}  // namespace

// All transfers of one operation. They move without anybody's waiting for them, but Gloo tells of
// their end only whoever waits, and a wait that runs out of time closes its connections. So who
// asks whether they have ended makes a thread wait: from the first question on, until the end.
// Threads: one waits; abort() and questions from any.
class TaggedBackend::TaggedWork final : public c10d::Work {
 public:
  TaggedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> transfers)
      : Work(rank, c10d::OpType::UNKNOWN), transfers_(std::move(transfers)) {
    if (transfers_.empty()) state_ = State::done;
  }
  ~TaggedWork() override {
    if (waiter_.joinable() && !ended(state())) abort();
  }

  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    if (state_ == State::alone && start_thread()) state_ = State::waited_for;
    return ended(state_);
  }
  bool isSuccess() const override { return state() == State::done; }

  bool wait(milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (state_ == State::alone) {
      state_ = State::waited_for;
      lock.unlock();
      return wait_here(timeout);
    }
    const auto over = [this] { return ended(state_); };  // somebody waits already
    if (timeout == kNoTimeout) {
      ended_.wait(lock, over);
    } else if (!ended_.wait_for(lock, timeout, over)) {
      return false;
    }
    if (state_ == State::failed) std::rethrow_exception(failure_);
    return true;
  }

  void abort() override {
    for (const auto& transfer : transfers_) transfer->abort();
  }

 private:
  enum class State { alone, waited_for, done, failed };
  static bool ended(State state) { return state == State::done || state == State::failed; }

  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  void end(State how, std::exception_ptr failure = {}) {
    const std::lock_guard lock(mutex_);
    state_ = how;
    failure_ = std::move(failure);
    ended_.notify_all();
  }

  bool wait_here(milliseconds timeout) {
    try {
      const bool in_time = wait_for_all(timeout);
      end(in_time ? State::done : State::alone);
      return in_time;
    } catch (...) {
      end(State::failed, std::current_exception());
      throw;
    }
  }

  // Called with the lock; false: there is no thread to be had now.
  bool start_thread() {
    try {
      waiter_ = std::jthread([this] {
        try {
          if (!wait_for_all(kNoTimeout)) throw std::runtime_error("the transfer was aborted");
          end(State::done);
        } catch (...) {
          end(State::failed, std::current_exception());
        }
      });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  bool wait_for_all(milliseconds timeout) {
    const bool limited = timeout != kNoTimeout;
    const auto deadline = Clock::now() + timeout;
    for (const auto& transfer : transfers_) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      try {
        if (!transfer->wait(limited ? std::max(left, milliseconds(1)) : kNoTimeout)) {
          return false;
        }
      } catch (const std::exception&) {
        if (limited && Clock::now() >= deadline) return false;
        throw;
      }
    }
    return true;
  }

  const std::vector<c10::intrusive_ptr<c10d::Work>> transfers_;
  mutable std::mutex mutex_;  // guards the next two, and the start of the thread
  State state_ = State::alone;
  std::exception_ptr failure_;
  std::condition_variable ended_;
  std::jthread waiter_;  // last: ends before what it uses
};

TaggedBackend::TaggedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string_view name)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), seed_(mix(0, name)) {}

void TaggedBackend::announce(const OpFacts& facts) {
  if (facts.kind == OpKind::send || facts.kind == OpKind::recv) return;  // not of all ranks
  std::uint64_t what = mix(seed_ + static_cast<std::uint64_t>(++number_), facts);
  what ^= what >> 32;
  tag_ = kOurTags | static_cast<int>(what & (kOurTags - 1));
}

int TaggedBackend::peer_tag() const { return kOurTags | static_cast<int>(seed_ & (kOurTags - 1)); }

// Receives first: then what a peer sends finds its place at once. In step s everybody sends to the
// s-th rank after it, so that no rank is flooded.
c10::intrusive_ptr<c10d::Work> TaggedBackend::move(const Part& outgoing, const Part& incoming) {
  std::vector<c10::intrusive_ptr<c10d::Work>> transfers;
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ - step + size_) % size_;
    std::vector<at::Tensor> part{incoming(from)};
    if (part[0].defined() && part[0].numel() > 0) {
      transfers.push_back(inner_->recv(part, from, tag_));
    }
  }
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_;
    std::vector<at::Tensor> part{outgoing(to)};
    if (part[0].defined() && part[0].numel() > 0) {
      transfers.push_back(inner_->send(part, to, tag_));
    }
  }
  return remember(std::move(transfers));
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::remember(
    std::vector<c10::intrusive_ptr<c10d::Work>> transfers) {
  auto work = c10::make_intrusive<TaggedWork>(rank_, std::move(transfers));
  const std::lock_guard lock(mutex_);
  std::erase_if(in_flight_, [](const auto& known) { return known.expired(); });
  in_flight_.emplace_back(work);
  return work;
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::_allgather_base(at::Tensor& whole, at::Tensor& mine,
                                                              const c10d::AllgatherOptions& how) {
  if (!whole.is_cpu()) return inner_->_allgather_base(whole, mine, how);
  const at::Tensor own = part_of(whole, rank_, size_);
  if (own.data_ptr() != mine.data_ptr()) own.copy_(mine);
  return move([&](int) { return mine; }, [&](int from) { return part_of(whole, from, size_); });
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::alltoall_base(
    at::Tensor& received, at::Tensor& sent, std::vector<std::int64_t>& received_splits,
    std::vector<std::int64_t>& sent_splits, const c10d::AllToAllOptions& how) {
  if (!sent.is_cpu()) {
    return inner_->alltoall_base(received, sent, received_splits, sent_splits, how);
  }
  part_of(received, rank_, size_).copy_(part_of(sent, rank_, size_));
  return exchange(received, sent);
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::exchange(at::Tensor& received, at::Tensor& whole) {
  if (!whole.is_cpu()) {
    std::vector<std::int64_t> equal;
    return inner_->alltoall_base(received, whole, equal, equal, {});
  }
  return move([&](int to) { return part_of(whole, to, size_); },
              [&](int from) { return part_of(received, from, size_); });
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& how) {
  const at::Tensor& tensor = tensors.at(0);
  if (!tensor.is_cpu()) return inner_->broadcast(tensors, how);
  const int root = static_cast<int>(how.rootRank);
  return move([&](int) { return rank_ == root ? tensor : at::Tensor(); },
              [&](int from) { return from == root ? tensor : at::Tensor(); });
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::barrier(const c10d::BarrierOptions&) {
  at::Tensor signs = at::zeros({size_ + 1}, at::kByte);
  return move([&](int) { return signs.narrow(0, size_, 1); },
              [&](int from) { return signs.narrow(0, from, 1); });
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::send(std::vector<at::Tensor>& tensors, int to,
                                                   int /*tag*/) {
  return remember({inner_->send(tensors, to, peer_tag())});
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::recv(std::vector<at::Tensor>& tensors, int from,
                                                   int /*tag*/) {
  return remember({inner_->recv(tensors, from, peer_tag())});
}

c10::intrusive_ptr<c10d::Work> TaggedBackend::reduce_scatter_ordered(at::Tensor&, at::Tensor&,
                                                                     bool) {
  throw InternalError({.what = "this backend makes no sums", .where = getBackendName()});
}

void TaggedBackend::abort_with(std::string_view /*reason*/) {
  std::vector<c10::intrusive_ptr<TaggedWork>> works;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : in_flight_) {
      if (auto work = known.lock()) works.push_back(std::move(work));
    }
  }
  for (const auto& work : works) work->abort();
}

}  // namespace capstan::comm
