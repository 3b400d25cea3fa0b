#include "capstan/comm/own_backend.h"

namespace capstan::comm {

bool OpWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, done);
  } else if (!cv_.wait_for(lock, timeout, done)) {
    return false;
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

}  // namespace capstan::comm
