// Where the time goes: spans of work with their bytes, on the host's clock and on the device's.
// What nobody reads is not recorded.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "capstan/profile/device_clock.h"

namespace capstan::profile {

enum class Kind : std::uint8_t {
  phase,     // forward, backward, step: all else lies within one
  gather,    // collectives: the same values on all ranks afterwards,
  reduce,    // sums over ranks,
  exchange,  // and the others
  compute,   // kernels of ours
  copy,      // between host and device
  update,    // of the optimizer
  wait,      // for work that runs elsewhere; device: how long it held up the stream
  io,        // reads and writes of files
};

std::string_view to_string(Kind kind);
std::optional<Kind> kind_named(std::string_view name);

class Kinds {
 public:
  constexpr Kinds() = default;
  constexpr Kinds(std::initializer_list<Kind> kinds) {
    for (const Kind kind : kinds) bits_ |= bit(kind);
  }
  static constexpr Kinds all() { return Kinds(~0U); }

  constexpr bool has(Kind kind) const { return (bits_ & bit(kind)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Kinds operator|(Kinds other) const { return Kinds(bits_ | other.bits_); }

 private:
  explicit constexpr Kinds(std::uint32_t bits) : bits_(bits) {}
  static constexpr std::uint32_t bit(Kind kind) { return 1U << static_cast<unsigned>(kind); }
  std::uint32_t bits_ = 0;
};

struct SpanFacts {
  std::string_view name;       // of the operation; must live as long as the program
  std::string_view unit = {};  // or what else it was for
  Kind kind = Kind::compute;
  std::int64_t bytes = 0;
  int device = kHost;            // on whose current stream the work is enqueued
  std::string_view detail = {};  // for those who list single spans
  const void* owner = nullptr;   // whose it is, where several of a kind use one recorder
};

// A span that is over, on the host and on the device.
struct Record {
  std::string_view name;
  std::string unit;
  std::string detail;
  Kind kind = Kind::compute;
  std::int64_t bytes = 0;
  const void* owner = nullptr;  // only to be compared
  std::thread::id thread;
  Clock::time_point host_begin;
  Clock::time_point host_end;
  DeviceTime device;  // that of the host for what runs there
};

class Reader;

// Owns:    spans until the device has ended them.
// Threads: any.
class Recorder {
 public:
  // Without a clock all times are the host's.
  explicit Recorder(std::shared_ptr<DeviceClock> clock = nullptr) : clock_(std::move(clock)) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  bool records(Kind kind) const noexcept {
    return wanted_.load(std::memory_order_relaxed).has(kind);
  }
  // Returns when the device has ended every span that was closed before the call.
  void settle();
  DeviceClock* clock() const { return clock_.get(); }

 private:
  friend class Reader;
  friend class Span;
  struct Closed {
    Record record;
    std::shared_ptr<DeviceWork> work;  // null: on the host
  };

  void close(Closed span);
  // Those in front that the device has ended. Call with the lock held.
  void deliver_ended();
  void deliver(Closed& span);
  void want();

  const std::shared_ptr<DeviceClock> clock_;
  std::atomic<Kinds> wanted_{Kinds()};
  std::mutex mutex_;  // guards what follows, and the readers' records
  std::vector<Reader*> readers_;
  std::deque<Closed> closed_;  // in the order in which they were
};

// As long as it lives, spans of these kinds are recorded.
// Threads: one caller at a time.
class Reader {
 public:
  Reader(std::shared_ptr<Recorder> recorder, Kinds kinds);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // What has ended since the last call, in the order in which the host closed it. Never waits for a
  // device; after Recorder::settle() all is there.
  std::vector<Record> take();
  // How many were dropped since the last call, the oldest first, because nobody took them.
  std::int64_t take_dropped();

  // Kept for a reader that does not come.
  static constexpr std::size_t kMaxRecords = 1 << 16;

 private:
  friend class Recorder;
  void add(const Record& record);

  const std::shared_ptr<Recorder> recorder_;
  const Kinds kinds_;
  std::deque<Record> records_;
  std::int64_t dropped_ = 0;
};

// Open from here to its end. While nobody reads its kind, it is a null pointer.
// Threads: one at a time.
class Span {
 public:
  Span() = default;
  // A null recorder records nothing. `recorder` must outlive this. `work` instead of what the
  // current stream holds at the end and does not at the beginning.
  Span(Recorder* recorder, const SpanFacts& facts, std::shared_ptr<DeviceWork> work = nullptr) {
    if (recorder != nullptr && recorder->records(facts.kind)) {
      begin(*recorder, facts, std::move(work));
    }
  }
  Span(Span&&) noexcept = default;
  Span& operator=(Span&& other) noexcept;
  ~Span() {
    if (open_ != nullptr) end();
  }

  bool open() const { return open_ != nullptr; }
  void end() noexcept;
  // For what is known only then.
  void end_as(std::string_view name) noexcept;
  // Nothing is recorded.
  void drop() { open_.reset(); }

 private:
  struct Open {
    Recorder& recorder;
    Record record;
    std::shared_ptr<DeviceWork> work;
    int device = kHost;                            // of `began`
    std::shared_ptr<const DeviceMark> began = {};  // null: without a device, or with `work`
  };
  void begin(Recorder& recorder, const SpanFacts& facts, std::shared_ptr<DeviceWork> work);

  std::unique_ptr<Open> open_;
};

}  // namespace capstan::profile
