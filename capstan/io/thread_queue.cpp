#include "capstan/io/thread_queue.h"

#include <algorithm>
#include <cerrno>

#include <unistd.h>

namespace capstan::io {
namespace {

std::int64_t transfer(const RawOp& op) {
  const auto bytes = static_cast<std::size_t>(op.bytes);
  const ssize_t moved = op.kind == OpKind::read ? ::pread(op.fd, op.data, bytes, op.offset)
                                                : ::pwrite(op.fd, op.data, bytes, op.offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

ThreadQueue::ThreadQueue(int depth) : depth_(depth) {
  const int count = std::min(depth, kMaxWorkers);
  workers_.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
}

ThreadQueue::~ThreadQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  todo_changed_.notify_all();
}

Submitted ThreadQueue::submit(std::span<const RawOp> ops) {
  {
    const std::lock_guard lock(mutex_);
    todo_.insert(todo_.end(), ops.begin(), ops.end());
  }
  if (ops.size() == 1) {
    todo_changed_.notify_one();
  } else {
    todo_changed_.notify_all();
  }
  return {.accepted = static_cast<std::int64_t>(ops.size())};
}

std::int64_t ThreadQueue::wait(std::span<RawDone> out) {
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [this] { return !done_.empty(); });
  const std::size_t count = std::min(out.size(), done_.size());
  std::copy_n(done_.begin(), count, out.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  return static_cast<std::int64_t>(count);
}

void ThreadQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    todo_changed_.wait(lock, [this] { return closing_ || !todo_.empty(); });
    if (todo_.empty()) return;
    const RawOp op = todo_.front();
    todo_.pop_front();
    lock.unlock();
    const std::int64_t result = transfer(op);
    lock.lock();
    done_.push_back({.tag = op.tag, .result = result});
    done_changed_.notify_one();
  }
}

}  // namespace capstan::io
