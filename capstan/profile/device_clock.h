// Time on a device, as the recorder reads it: the host enqueues and goes on, the device tells later
// when it came by.
#pragma once

#include <chrono>
#include <memory>

namespace capstan::profile {

using Clock = std::chrono::steady_clock;

inline double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

inline constexpr int kHost = -1;  // instead of the index of a device

// A place in the queue of a device.
// Threads: one at a time.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  virtual bool passed() const = 0;             // never waits
  virtual void wait() const = 0;               // until it has passed
  virtual Clock::time_point time() const = 0;  // after it has passed
};

// Threads: any.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // Behind all that this thread's current stream of the device holds now.
  virtual std::shared_ptr<const DeviceMark> mark(int device) = 0;
};

struct DeviceTime {
  Clock::time_point begin;
  std::chrono::nanoseconds length{0};
};

// What a device was given to do in one span.
// Threads: one at a time.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual bool ended() const = 0;  // never waits
  virtual void wait() const = 0;   // until it has ended
  virtual DeviceTime read() = 0;   // after it has ended
};

}  // namespace capstan::profile
