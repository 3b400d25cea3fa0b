// How long the device is at an operation of NCCL, which runs on a stream of the backend's own.
// Private to comm.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "capstan/profile/device_clock.h"

namespace capstan::comm {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Threads: one at a time; read() of all operations of a group under one lock.
class OpTimes final : public profile::DeviceWork {
 public:
  // When the operation is issued, on a backend that times its work. `before`: the last one of the
  // same group, or null; they run one after another. `clock` must outlive this.
  OpTimes(profile::DeviceClock* clock, int device, std::shared_ptr<OpTimes> before);
  // Behind the wait for it: an exchange, timed by the backend.
  void add(WorkPtr exchange) { exchanges_.push_back(std::move(exchange)); }
  // Behind the last wait. One that was given up has none, and takes no time.
  void end();

  bool ended() const override { return waited_ == nullptr || waited_->passed(); }
  void wait() const override {
    if (waited_ != nullptr) waited_->wait();
  }
  // The time is the sum of the exchanges', without what lies between them.
  profile::DeviceTime read() override;

 private:
  profile::DeviceClock* const clock_;
  const int device_;
  const profile::Clock::time_point issued_ = profile::Clock::now();
  std::shared_ptr<OpTimes> before_;
  std::shared_ptr<const profile::DeviceMark> ready_;   // where its input is
  std::shared_ptr<const profile::DeviceMark> waited_;  // null: not yet
  std::vector<WorkPtr> exchanges_;
  std::optional<profile::DeviceTime> read_;
};

}  // namespace capstan::comm
