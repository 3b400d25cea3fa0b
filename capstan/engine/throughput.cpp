#include "capstan/engine/throughput.h"

#include <utility>

#include <fmt/format.h>

#include "capstan/engine/phase_clock.h"

namespace capstan::engine {
namespace {

constexpr std::int64_t kWarmUpSteps = 2;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

void Throughput::add(const profile::Record& record) {
  if (record.kind != profile::Kind::phase) return;
  open_step_ += record.device.length;
  if (record.name != to_string(Phase::step)) return;
  last_step_ = std::exchange(open_step_, {});
  if (++timed_ > kWarmUpSteps) total_ += last_step_;
}

std::optional<double> Throughput::running_average() const {
  if (timed_ <= kWarmUpSteps || steps_ == 0) return std::nullopt;
  const double per_step = static_cast<double>(samples_) / static_cast<double>(steps_);
  return per_step * static_cast<double>(timed_ - kWarmUpSteps) / total_.count();
}

std::optional<double> Throughput::current() const {
  if (timed_ <= kWarmUpSteps) return std::nullopt;
  return static_cast<double>(last_samples_) / last_step_.count();
}

std::string throughput_line(const Throughput& throughput, std::int64_t micro_step,
                            std::int64_t allocated_bytes, std::int64_t max_allocated_bytes) {
  return fmt::format(
      "epoch=0/micro_step={}/global_step={}, RunningAvgSamplesPerSec={}, CurrSamplesPerSec={}, "
      "MemAllocated={:.2f}GB, MaxMemAllocated={:.2f}GB",
      micro_step, throughput.steps(), throughput.running_average().value_or(0),
      throughput.current().value_or(0), gib(allocated_bytes), gib(max_allocated_bytes));
}

}  // namespace capstan::engine
