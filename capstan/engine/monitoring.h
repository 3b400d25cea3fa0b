// Tells the monitors of an engine what its steps were: the loss that backward() was given, rates,
// speed, memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/mesh_groups.h"
#include "capstan/engine/options.h"
#include "capstan/engine/run_log.h"
#include "capstan/engine/step_types.h"
#include "capstan/monitor/log.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// What a caller adds to the monitors of Options.
struct Monitors {
  bool here = true;  // false: this rank writes none, whatever its place in the group
  std::vector<std::unique_ptr<monitor::Sink>> sinks;
};
// Called on every rank; where it throws on one, all of them throw.
using MonitorMaker = std::function<Monitors()>;

// The figures of a step that has ended, all but the loss and the speed.
monitor::StepStats stats_of(const StepReport& report, const Progress& progress,
                            shard::ShardedModel& sharded, const precision::Options& precision);

// Does nothing where Options::monitor asks for nothing.
// Threads: one caller at a time.
// Ranks:   the constructor and step_ended() are collective.
class Monitoring {
 public:
  // All of it must outlive this.
  struct Parts {
    const Options& options;
    comm::MeshGroups& mesh;
    shard::ShardedModel& sharded;
    Logger& logger;
  };
  // Throws IoError where a monitor cannot begin, and what `maker` throws.
  Monitoring(const Parts& parts, const MonitorMaker& maker);

  // Of one micro-batch, as it was given: `averaged` false: divided by the accumulation steps
  // already.
  void add_loss(const at::Tensor& loss, bool averaged);
  void forget_losses();
  void validated(double loss, const Progress& progress);  // not collective
  void step_ended(const StepReport& report, const Progress& progress);

 private:
  double mean_loss();  // NaN where nobody gave one

  Parts parts_;
  bool on_;
  std::unique_ptr<monitor::Log> log_;  // on the rank that writes
  at::Tensor sum_;                     // of losses, one element on the device
  std::int64_t losses_ = 0;
  std::optional<std::chrono::steady_clock::time_point> last_step_;
};

}  // namespace capstan::engine
