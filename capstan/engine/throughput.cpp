#include "capstan/engine/throughput.h"

#include <fmt/format.h>

namespace capstan::engine {
namespace {

constexpr std::int64_t kWarmUpSteps = 2;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

void Throughput::step_ended(Clock::time_point now) {
  ++steps_;
  if (step_began_.has_value()) {
    last_step_ = now - *step_began_;
    total_ += last_step_;
  }
  if (steps_ >= kWarmUpSteps) step_began_ = now;
}

std::optional<double> Throughput::running_average() const {
  if (steps_ <= kWarmUpSteps) return std::nullopt;
  return static_cast<double>(samples_per_step_ * (steps_ - kWarmUpSteps)) / total_.count();
}

std::optional<double> Throughput::current() const {
  if (steps_ <= kWarmUpSteps) return std::nullopt;
  return static_cast<double>(samples_per_step_) / last_step_.count();
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
