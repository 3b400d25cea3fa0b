#include "capstan/profile/event_clock.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace capstan::profile {
namespace {

using EventPtr = std::unique_ptr<c10::Event>;

// An event tells its distance to another one in single precision: one that is no older than this is
// told to a tenth of a microsecond.
constexpr std::chrono::seconds kAnchorAge{1};

// Events that nobody needs at the moment, by device. Threads: any.
class EventPool {
 public:
  EventPtr take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<EventPtr>& free = free_[device];
    if (free.empty()) {
      return std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    }
    EventPtr event = std::move(free.back());
    free.pop_back();
    return event;
  }
  void give_back(int device, EventPtr event) {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<EventPtr>> free_;
};

std::chrono::nanoseconds distance(const c10::Event& from, const c10::Event& to) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::milli>(from.elapsedTime(to)));
}

// An event that has passed, and when that was.
struct Anchor {
  c10::Event event{c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
  Clock::time_point time;
};

class EventMark final : public DeviceMark {
 public:
  EventMark(std::shared_ptr<EventPool> pool, int device, std::shared_ptr<const Anchor> anchor)
      : pool_(std::move(pool)),
        device_(device),
        anchor_(std::move(anchor)),
        event_(pool_->take(device)) {
    const c10::Device on(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    event_->record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(on));
  }
  ~EventMark() override { pool_->give_back(device_, std::move(event_)); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  bool passed() const override { return event_->query(); }
  void wait() const override { event_->synchronize(); }
  Clock::time_point time() const override {
    return anchor_->time + distance(anchor_->event, *event_);
  }

 private:
  const std::shared_ptr<EventPool> pool_;
  const int device_;
  const std::shared_ptr<const Anchor> anchor_;
  EventPtr event_;
};

class EventClock final : public DeviceClock {
 public:
  std::shared_ptr<const DeviceMark> mark(int device) override {
    return std::make_shared<EventMark>(pool_, device, anchor_of(device));
  }

 private:
  // On a stream with nothing else in it, so that it passes at once. Only the first one is compared
  // with the host's clock: the next ones are as far from each other as the device says.
  std::shared_ptr<const Anchor> anchor_of(int device) {
    const std::lock_guard lock(mutex_);
    Lane& lane = lanes_[device];
    std::shared_ptr<const Anchor>& last = lane.anchor;
    if (last != nullptr && Clock::now() - last->time < kAnchorAge) return last;
    if (!lane.stream.has_value()) {
      const c10::Device on(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
      lane.stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(on);
    }
    auto anchor = std::make_shared<Anchor>();
    anchor->event.record(*lane.stream);
    anchor->event.synchronize();
    anchor->time =
        last == nullptr ? Clock::now() : last->time + distance(last->event, anchor->event);
    last = std::move(anchor);
    return last;
  }

  struct Lane {
    std::optional<c10::Stream> stream;
    std::shared_ptr<const Anchor> anchor;
  };
  const std::shared_ptr<EventPool> pool_ = std::make_shared<EventPool>();
  std::mutex mutex_;
  std::map<int, Lane> lanes_;  // by device
};

}  // namespace

std::shared_ptr<DeviceClock> make_event_clock() { return std::make_shared<EventClock>(); }

std::shared_ptr<Recorder> make_recorder() { return std::make_shared<Recorder>(make_event_clock()); }

}  // namespace capstan::profile
