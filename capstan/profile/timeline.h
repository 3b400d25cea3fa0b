// Spans of one rank as lanes of a picture, what a step waited for, and which setting would help.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/base/option_names.h"
#include "capstan/profile/recorder.h"

namespace capstan::profile {

enum class Lane : std::uint8_t {
  phase,
  compute,
  gather,
  reduce,
  exchange,
  copy,
  update,
  disk,
  wait
};
inline constexpr std::size_t kLanes = 9;

std::string_view to_string(Lane lane);
Lane lane_of(Kind kind, std::string_view name);
// What a wait of this name is for.
Lane cause_of(std::string_view name);

struct TimelineSpan {
  Lane lane = Lane::compute;
  std::string name;
  std::string unit;
  std::string detail;
  std::int64_t bytes = 0;
  double begin_us = 0;  // on the clock that all ranks share
  double end_us = 0;
  bool computes = false;  // on a thread that runs the model
  bool operator==(const TimelineSpan&) const = default;
};

// One training step: forward, backward and the update.
struct StepWindow {
  std::int64_t step = 0;  // counted from 1
  double begin_us = 0;
  double end_us = 0;
  bool operator==(const StepWindow&) const = default;
};

struct RankTimeline {
  int rank = 0;
  std::string place;                // of the rank, where ranks do different things: "stage 1"
  std::vector<TimelineSpan> spans;  // by begin
  std::vector<StepWindow> steps;
  bool operator==(const RankTimeline&) const = default;
};

// Moves all times by `offset_us`: from a rank's clock to that of all.
void shift(RankTimeline& timeline, double offset_us);

// From records of a rank. `steps_before`: how many steps came before the first one. Phases whose
// owner is not `owner` (null: any) are those of other engines.
RankTimeline to_timeline(const std::vector<Record>& records, int rank, std::int64_t steps_before,
                         const void* owner = nullptr);

// Where the time of a step went. Each instant counts once: as computing if the model ran, else for
// what ran or was waited for instead.
struct StepShares {
  double step_us = 0;
  double compute_us = 0;
  std::array<double, kLanes> exposed_us{};  // by the lane that it went to instead
  double other_us = 0;                      // nothing that is recorded: data, losses, Python

  double share(Lane lane) const {
    return step_us > 0 ? exposed_us[static_cast<std::size_t>(lane)] / step_us : 0;
  }
};

StepShares shares_of(const RankTimeline& timeline);

// What a run has set, for advice.
struct TracedSettings {
  int stage = 0;
  int pipe = 1;
  bool overlaps_reduction = true;
  bool updates_on_host = false;
  bool late_updates = false;
  bool early_updates = false;
  OptionNames names = {};  // what users call them
};

// "exposed: gather 3.1 %, update 12.0 %; computing 80.3 %"
std::string describe(const StepShares& shares);
// A sentence per lane that costs a step more than two percent, the most first.
std::vector<std::string> advice(const StepShares& shares, const TracedSettings& settings);

}  // namespace capstan::profile
