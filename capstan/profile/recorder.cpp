#include "capstan/profile/recorder.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <utility>

namespace capstan::profile {
namespace {

// In the order of Kind.
constexpr std::array<std::string_view, 9> kNames = {
    "phase", "gather", "reduce", "exchange", "compute", "copy", "update", "wait", "io"};

// From one place in a queue to another.
class BetweenMarks final : public DeviceWork {
 public:
  BetweenMarks(std::shared_ptr<const DeviceMark> begin, std::shared_ptr<const DeviceMark> end)
      : begin_(std::move(begin)), end_(std::move(end)) {}
  bool ended() const override { return end_->passed(); }
  void wait() const override { end_->wait(); }
  DeviceTime read() override {
    const Clock::time_point begin = begin_->time();
    return {begin, end_->time() - begin};
  }

 private:
  const std::shared_ptr<const DeviceMark> begin_;
  const std::shared_ptr<const DeviceMark> end_;
};

}  // namespace

std::string_view to_string(Kind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<Kind> kind_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Kind>(found - kNames.begin());
}

void Recorder::close(Closed span) {
  const std::lock_guard lock(mutex_);
  closed_.push_back(std::move(span));
  deliver_ended();
}

void Recorder::deliver_ended() {
  while (!closed_.empty()) {
    Closed& front = closed_.front();
    if (front.work != nullptr && !front.work->ended()) return;
    deliver(front);
    closed_.pop_front();
  }
}

void Recorder::deliver(Closed& span) {
  if (span.work != nullptr) span.record.device = span.work->read();
  for (Reader* const reader : readers_) {
    if (reader->kinds_.has(span.record.kind)) reader->add(span.record);
  }
}

// Without the lock while it waits: other threads go on closing spans.
void Recorder::settle() {
  std::deque<Closed> waited;
  {
    const std::lock_guard lock(mutex_);
    waited.swap(closed_);
  }
  for (const Closed& span : waited) {
    if (span.work != nullptr) span.work->wait();
  }
  const std::lock_guard lock(mutex_);
  for (Closed& span : waited) deliver(span);
}

void Recorder::want() {
  Kinds wanted;
  for (const Reader* const reader : readers_) wanted = wanted | reader->kinds_;
  wanted_.store(wanted, std::memory_order_relaxed);
}

Reader::Reader(std::shared_ptr<Recorder> recorder, Kinds kinds)
    : recorder_(std::move(recorder)), kinds_(kinds) {
  const std::lock_guard lock(recorder_->mutex_);
  recorder_->readers_.push_back(this);
  recorder_->want();
}

Reader::~Reader() {
  const std::lock_guard lock(recorder_->mutex_);
  std::erase(recorder_->readers_, this);
  recorder_->want();
}

std::vector<Record> Reader::take() {
  const std::lock_guard lock(recorder_->mutex_);
  recorder_->deliver_ended();
  std::vector<Record> taken(std::make_move_iterator(records_.begin()),
                            std::make_move_iterator(records_.end()));
  records_.clear();
  return taken;
}

std::int64_t Reader::take_dropped() {
  const std::lock_guard lock(recorder_->mutex_);
  return std::exchange(dropped_, 0);
}

void Reader::add(const Record& record) {
  if (records_.size() == kMaxRecords) {
    records_.pop_front();
    ++dropped_;
  }
  records_.push_back(record);
}

void Span::begin(Recorder& recorder, const SpanFacts& facts, std::shared_ptr<DeviceWork> work) {
  auto open = std::make_unique<Open>(Open{.recorder = recorder,
                                          .record = {.name = facts.name,
                                                     .unit = std::string(facts.unit),
                                                     .detail = std::string(facts.detail),
                                                     .kind = facts.kind,
                                                     .bytes = facts.bytes,
                                                     .owner = facts.owner,
                                                     .thread = std::this_thread::get_id()},
                                          .work = std::move(work),
                                          .device = facts.device});
  const bool on_stream = open->work == nullptr && facts.device != kHost;
  if (on_stream && recorder.clock() != nullptr) {
    open->began = recorder.clock()->mark(facts.device);
  }
  open->record.host_begin = Clock::now();
  open_ = std::move(open);
}

Span& Span::operator=(Span&& other) noexcept {
  if (this != &other) {
    if (open_ != nullptr) end();
    open_ = std::move(other.open_);
  }
  return *this;
}

// Whoever measures must not fail for it: a device that cannot be asked says so to the next one who
// needs it.
void Span::end() noexcept {
  if (open_ == nullptr) return;
  const std::unique_ptr<Open> open = std::move(open_);
  try {
    open->record.host_end = Clock::now();
    if (open->began != nullptr) {
      open->work = std::make_shared<BetweenMarks>(std::move(open->began),
                                                  open->recorder.clock()->mark(open->device));
    }
    open->record.device = {open->record.host_begin,
                           open->record.host_end - open->record.host_begin};
    open->recorder.close({std::move(open->record), std::move(open->work)});
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

void Span::end_as(std::string_view name) noexcept {
  if (open_ != nullptr) open_->record.name = name;
  end();
}

}  // namespace capstan::profile
