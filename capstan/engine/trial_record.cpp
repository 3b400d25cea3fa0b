#include "capstan/engine/trial_record.h"

#include <span>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>

#include "capstan/engine/memory_use.h"
#include "capstan/io/durable.h"

namespace capstan::engine {
namespace {

std::int64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

TrialRecord::TrialRecord(const Job& job, std::shared_ptr<profile::Recorder> recorder,
                         const PhaseClock* clock)
    : job_(job),
      recorder_(std::move(recorder)),
      clock_(clock),
      reader_(recorder_, {profile::Kind::phase}) {
  if (job_.options.profile.trial.first_step <= 1) begin();
}

void TrialRecord::step_ended(std::int64_t samples) {
  const profile::TrialOptions& trial = job_.options.profile.trial;
  ++steps_;
  if (steps_ >= trial.first_step) samples_ += samples;
  if (steps_ + 1 == trial.first_step) begin();
  if (steps_ != trial.last_step) return;
  recorder_->settle();
  const std::chrono::duration<double> took = Clock::now() - began_;
  read_phases();
  const std::string record = text(took.count());
  io::write_durably(trial.file, std::as_bytes(std::span(record)));
}

void TrialRecord::begin() {
  recorder_->settle();
  read_phases();
  phases_ = {};
  began_ = Clock::now();
}

void TrialRecord::read_phases() {
  for (const profile::Record& record : reader_.take()) {
    if (record.owner == clock_) phases_.add(record);  // engines over one group share its recorder
  }
}

std::string TrialRecord::text(double seconds) const {
  const Options& options = job_.options;
  const double steps =
      static_cast<double>(options.profile.trial.last_step - options.profile.trial.first_step + 1);
  const auto per_step = [&](Phase phase) {
    return std::chrono::duration<double>(phases_.of(phase)).count() / steps;
  };
  const std::int64_t host = peak_host_bytes();
  return fmt::format(
      R"({{
  "steps": {}, "ranks": {}, "stage": {},
  "micro_batch": {}, "accumulation_steps": {},
  "latency": {:.9g}, "throughput": {:.9g},
  "forward": {:.9g}, "backward": {:.9g}, "step": {:.9g},
  "memory_bytes": {}, "host_bytes": {}
}}
)",
      steps, job_.ranks, options.shard.stage, options.batch.micro_samples,
      options.batch.accumulation_steps, seconds / steps, static_cast<double>(samples_) / seconds,
      per_step(Phase::forward), per_step(Phase::backward), per_step(Phase::step),
      job_.device.is_cpu() ? host : peak_device_bytes(job_.device), host);
}

}  // namespace capstan::engine
