#include "capstan/comm/op_times.h"

#include <algorithm>
#include <utility>

namespace capstan::comm {

OpTimes::OpTimes(profile::DeviceClock* clock, int device, std::shared_ptr<OpTimes> before)
    : clock_(clock), device_(device), before_(std::move(before)) {
  if (clock_ != nullptr) ready_ = clock_->mark(device_);
}

void OpTimes::end() {
  if (clock_ != nullptr) waited_ = clock_->mark(device_);
}

profile::DeviceTime OpTimes::read() {
  if (waited_ == nullptr) return {issued_, {}};
  if (read_.has_value()) return *read_;
  profile::DeviceTime time{ready_->time(), {}};
  // A stream runs one operation after the other.
  if (before_ != nullptr && before_->read_.has_value()) {
    time.begin = std::max(time.begin, before_->read_->begin + before_->read_->length);
  }
  for (const WorkPtr& exchange : exchanges_) {
    time.length += std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<float, std::milli>(exchange->getDuration()));
  }
  before_ = nullptr;
  exchanges_.clear();  // with the tensors that they hold
  read_ = time;
  return time;
}

}  // namespace capstan::comm
