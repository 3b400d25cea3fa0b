#include "capstan/profile/timeline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace capstan::profile {
namespace {

constexpr std::array<std::string_view, kLanes> kLaneNames = {
    "phase", "compute", "gather", "reduce", "exchange", "copy", "update", "disk", "wait"};
// Less is not worth a sentence, or a word.
constexpr double kWorthAdvice = 0.02;
constexpr double kWorthWords = 0.0005;

double microseconds(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// Spans of the model's own work: its forwards and backwards.
bool runs_model(Kind kind, std::string_view name) {
  return kind == Kind::phase || lane_of(kind, name) == Lane::compute;
}

// Where an instant counts; the first one that something is in.
enum Bucket : std::size_t {
  waiting,  // for one of kLanes causes
  computing = waiting + kLanes,
  updating,
  reducing,
  gathering,
  exchanging,
  copying,
  using_disk,
  in_backward,  // between units: autograd's own work
  buckets
};

constexpr std::array<std::pair<Lane, Bucket>, 7> kBucketOf = {{{Lane::compute, computing},
                                                               {Lane::update, updating},
                                                               {Lane::reduce, reducing},
                                                               {Lane::gather, gathering},
                                                               {Lane::exchange, exchanging},
                                                               {Lane::copy, copying},
                                                               {Lane::disk, using_disk}}};

std::optional<std::size_t> bucket_of(const TimelineSpan& span) {
  if (span.lane == Lane::phase) {
    return span.name == "backward" ? std::optional<std::size_t>(in_backward) : std::nullopt;
  }
  if (span.lane == Lane::wait) {
    if (!span.computes) return std::nullopt;  // what waits there holds nobody up
    return waiting + static_cast<std::size_t>(cause_of(span.name));
  }
  const auto* const found =
      std::ranges::find(kBucketOf, span.lane, &std::pair<Lane, Bucket>::first);
  return found->second;
}

struct Edge {
  double time_us = 0;
  std::size_t bucket = 0;
  int change = 0;
};

void count(StepShares& shares, std::size_t bucket, double time_us) {
  shares.step_us += time_us;
  if (bucket == buckets) {
    shares.other_us += time_us;
  } else if (bucket == computing || bucket == in_backward) {
    shares.compute_us += time_us;
  } else if (bucket < computing) {
    shares.exposed_us[bucket - waiting] += time_us;
  } else {
    const auto* const lane =
        std::ranges::find(kBucketOf, static_cast<Bucket>(bucket), &std::pair<Lane, Bucket>::second);
    shares.exposed_us[static_cast<std::size_t>(lane->first)] += time_us;
  }
}

void add_window(StepShares& shares, const std::vector<TimelineSpan>& spans,
                const StepWindow& step) {
  std::vector<Edge> edges = {{step.end_us, buckets, 0}};
  for (const TimelineSpan& span : spans) {
    const double begin = std::max(span.begin_us, step.begin_us);
    const double end = std::min(span.end_us, step.end_us);
    const std::optional<std::size_t> bucket = bucket_of(span);
    if (!bucket || begin >= end) continue;
    edges.push_back({begin, *bucket, 1});
    edges.push_back({end, *bucket, -1});
  }
  std::ranges::sort(edges, {}, &Edge::time_us);
  std::array<int, buckets> open{};
  double now = step.begin_us;
  for (const Edge& edge : edges) {
    const auto first = std::ranges::find_if(open, [](int spans_open) { return spans_open > 0; });
    count(shares, static_cast<std::size_t>(first - open.begin()), edge.time_us - now);
    now = edge.time_us;
    if (edge.bucket < buckets) open[edge.bucket] += edge.change;
  }
}

std::string advice_for(Lane lane, const TracedSettings& settings) {
  const OptionNames& names = settings.names;
  const std::string accumulation = names("batch.accumulation_steps");
  switch (lane) {
    case Lane::gather:
      if (settings.stage == 3) {
        return fmt::format("parameters came too late: raise {}, or {} if the units are small",
                           names("shard.prefetch_bytes"),
                           names("shard.persistence_threshold_elems"));
      }
      return fmt::format("updated parameters are gathered after each step: raise {}", accumulation);
    case Lane::reduce:
      if (!settings.overlaps_reduction) {
        return fmt::format("set {} to true", names("shard.overlap_comm"));
      }
      return fmt::format("sums of gradients take longer than the backward beside them: raise {}",
                         accumulation);
    case Lane::exchange:
      if (settings.pipe > 1) {
        return fmt::format(
            "stages wait for each other: raise {}, so that more micro-batches fill the pipeline, "
            "or cut the layers more evenly",
            accumulation);
      }
      return fmt::format(
          "ranks exchange parts of sequences, or wait for the slowest one: lower {}, "
          "or compare the ranks in the timeline",
          names("mesh"));
    case Lane::copy:
      return fmt::format("less offload moves less: lower {}", names("store.optimizer.ratio"));
    case Lane::update:
      if (!settings.updates_on_host) {
        return fmt::format("the update is the optimizer's own work: raise {}", accumulation);
      }
      if (!settings.late_updates) {
        return fmt::format("set {} to \"always\"", names("store.optimizer.late_updates"));
      }
      if (!settings.early_updates) {
        return fmt::format("set {} to \"measured\"", names("store.optimizer.early_updates"));
      }
      return fmt::format("the host updates more than it can hide: lower {}",
                         names("store.optimizer.ratio"));
    case Lane::disk:
      return fmt::format(
          "the disk is too slow for what it is given: raise {}, or keep some of it in memory",
          names("store.optimizer.buffer_count"));
    case Lane::phase:
    case Lane::compute:
    case Lane::wait:
      break;
  }
  return "see what runs in the timeline";
}

std::vector<Lane> most_exposed(const StepShares& shares) {
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    if (shares.exposed_us[i] > 0) lanes.push_back(static_cast<Lane>(i));
  }
  std::ranges::stable_sort(lanes, std::greater{}, [&](Lane lane) { return shares.share(lane); });
  return lanes;
}

}  // namespace

std::string_view to_string(Lane lane) { return kLaneNames[static_cast<std::size_t>(lane)]; }

Lane lane_of(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::phase:
      return Lane::phase;
    case Kind::gather:
      return Lane::gather;
    case Kind::reduce:
      return Lane::reduce;
    case Kind::exchange:
      return Lane::exchange;
    case Kind::compute:
      // The local half of a reduction.
      return name == "sum in rank order" ? Lane::reduce : Lane::compute;
    case Kind::copy:
      return Lane::copy;
    case Kind::update:
      return Lane::update;
    case Kind::io:
      return Lane::disk;
    case Kind::wait:
      break;
  }
  return Lane::wait;
}

Lane cause_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Lane>, 9> kCauses = {
      {{"all_gather", Lane::gather},
       {"broadcast", Lane::gather},
       {"reduce_scatter", Lane::reduce},
       {"all_reduce", Lane::reduce},
       {"gradient norm", Lane::reduce},
       {"copy", Lane::copy},
       {"update", Lane::update},
       {"disk", Lane::disk},
       {"read", Lane::disk}}};
  const auto* const found =
      std::ranges::find(kCauses, name, &std::pair<std::string_view, Lane>::first);
  return found == kCauses.end() ? Lane::exchange : found->second;
}

void shift(RankTimeline& timeline, double offset_us) {
  for (TimelineSpan& span : timeline.spans) {
    span.begin_us += offset_us;
    span.end_us += offset_us;
  }
  for (StepWindow& step : timeline.steps) {
    step.begin_us += offset_us;
    step.end_us += offset_us;
  }
}

RankTimeline to_timeline(const std::vector<Record>& records, int rank, std::int64_t steps_before,
                         const void* owner) {
  RankTimeline timeline{.rank = rank};
  std::set<std::thread::id> computing_threads;
  for (const Record& record : records) {
    if (runs_model(record.kind, record.name)) computing_threads.insert(record.thread);
  }
  double last_end = 0;
  for (const Record& record : records) {
    const bool foreign = owner != nullptr && record.owner != nullptr && record.owner != owner;
    if (record.kind == Kind::phase && foreign) continue;
    const double begin = microseconds(record.device.begin);
    const double end =
        begin + std::chrono::duration<double, std::micro>(record.device.length).count();
    timeline.spans.push_back({.lane = lane_of(record.kind, record.name),
                              .name = std::string(record.name),
                              .unit = record.unit,
                              .detail = record.detail,
                              .bytes = record.bytes,
                              .begin_us = begin,
                              .end_us = end,
                              .computes = computing_threads.contains(record.thread)});
    if (record.kind != Kind::phase) continue;
    if (last_end == 0) last_end = begin;
    if (record.name != "step") continue;
    timeline.steps.push_back({++steps_before, last_end, end});
    last_end = end;
  }
  std::ranges::stable_sort(timeline.spans, {}, &TimelineSpan::begin_us);
  return timeline;
}

StepShares shares_of(const RankTimeline& timeline) {
  StepShares shares;
  for (const StepWindow& step : timeline.steps) add_window(shares, timeline.spans, step);
  return shares;
}

std::string describe(const StepShares& shares) {
  if (shares.step_us <= 0) return "no step ended";
  std::vector<std::string> exposed;
  for (const Lane lane : most_exposed(shares)) {
    if (shares.share(lane) < kWorthWords) break;
    exposed.push_back(fmt::format("{} {:.1f} %", to_string(lane), 100 * shares.share(lane)));
  }
  return fmt::format("exposed: {}; computing {:.1f} %, other {:.1f} %",
                     exposed.empty() ? "nothing" : fmt::format("{}", fmt::join(exposed, ", ")),
                     100 * shares.compute_us / shares.step_us,
                     100 * shares.other_us / shares.step_us);
}

std::vector<std::string> advice(const StepShares& shares, const TracedSettings& settings) {
  std::vector<std::string> sentences;
  for (const Lane lane : most_exposed(shares)) {
    if (shares.share(lane) < kWorthAdvice) break;
    sentences.push_back(fmt::format("{} costs {:.1f} % of a step: {}", to_string(lane),
                                    100 * shares.share(lane), advice_for(lane, settings)));
  }
  return sentences;
}

}  // namespace capstan::profile
