#include "capstan/comm/own_backend.h"

namespace capstan::comm {

void OpWork::fail(std::exception_ptr why) {
  {
    const std::lock_guard lock(guard_);
    done_ = true;
    why_ = std::move(why);
  }
  finished_.notify_all();
}

bool OpWork::isCompleted() {
  const std::lock_guard lock(guard_);
  return done_;
}

bool OpWork::isSuccess() const {
  const std::lock_guard lock(guard_);
  return done_ && !why_;
}

std::exception_ptr OpWork::exception() const {
  const std::lock_guard lock(guard_);
  return why_;
}

bool OpWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(guard_);
  const auto done = [this] { return done_; };
  if (timeout == kNoTimeout) {
    finished_.wait(lock, done);
  } else if (!finished_.wait_for(lock, timeout, done)) {
    return false;
  }
  if (why_) {
    std::rethrow_exception(why_);
  }
  return true;
}

}  // namespace capstan::comm
