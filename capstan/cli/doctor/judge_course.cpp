// Findings about the course of a run: its speed, its loss, its skipped steps.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/cli/doctor/judge.h"

namespace capstan::cli::doctor {
namespace {

using profile::OpTime;
using profile::RankNotes;

// Chosen: what is less is no news.
constexpr double kMuchOfTheTime = 0.1;  // that the others wait for one rank
constexpr double kLeastSeconds = 1;     // that they wait
constexpr double kMostOfIt = 0.5;       // of that: one operation explains it
constexpr double kDiskShare = 0.25;     // of the time that a rank waits for a disk
constexpr double kSaveShare = 0.25;
constexpr double kSpike = 1.3;  // over the median of the steps before
constexpr double kRise = 1.2;   // of the last steps over the best ones
constexpr double kSlowdown = 0.7;
constexpr double kManySkipped = 0.05;
constexpr std::size_t kWindow = 20;    // steps that a step is compared with
constexpr std::size_t kFewSteps = 40;  // nothing is said about the speed of fewer

using Wanted = std::function<bool(const OpTime&)>;

constexpr std::array<std::string_view, 8> kCollectives = {
    "all_gather", "reduce_scatter", "all_reduce", "broadcast",
    "all_to_all", "send",           "recv",       "barrier"};

bool is_collective(const OpTime& time) {
  return time.kind == "wait" && std::ranges::count(kCollectives, time.name) > 0;
}

bool is_disk(const OpTime& time) {
  return time.kind == "wait" && (time.name == "disk" || time.name == "read");
}

bool is_save(const OpTime& time) { return time.kind == "io" && time.name == "save"; }

double sum(const RankNotes& notes, const Wanted& wanted) {
  double seconds = 0;
  for (const OpTime& time : notes.times) seconds += wanted(time) ? time.seconds : 0;
  return seconds;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// By operation: how much longer a rank took for it than the others did, the most first.
std::vector<std::pair<double, const OpTime*>> excess_of(const RankNotes& slow,
                                                        const std::vector<RankNotes>& ranks) {
  std::vector<std::pair<double, const OpTime*>> excess;
  for (const OpTime& time : slow.times) {
    if (is_collective(time)) continue;
    std::vector<double> others;
    for (const RankNotes& other : ranks) {
      if (other.rank == slow.rank) continue;
      others.push_back(sum(other, [&](const OpTime& each) {
        return each.kind == time.kind && each.name == time.name;
      }));
    }
    excess.emplace_back(time.seconds - median(std::move(others)), &time);
  }
  std::ranges::sort(excess, std::greater<>(), &std::pair<double, const OpTime*>::first);
  return excess;
}

// The collective in which the ranks but one waited longest.
std::string longest_wait(const std::vector<RankNotes>& ranks, int but) {
  std::map<std::string, double> waits;
  for (const RankNotes& notes : ranks) {
    for (const OpTime& time : notes.times) {
      if (notes.rank != but && is_collective(time)) waits[time.name] += time.seconds;
    }
  }
  const auto longest =
      std::ranges::max_element(waits, {}, &std::pair<const std::string, double>::second);
  return longest == waits.end() ? "" : longest->first;
}

std::string doing(const OpTime& time) {
  if (time.kind == "wait") return "waiting for " + (is_disk(time) ? "the disk" : time.name);
  if (time.kind == "io") return time.name;
  return "its " + time.name;
}

std::optional<double> finite_loss(const StepLine& step) { return step.loss; }

}  // namespace

// All ranks wait for the slowest one in their collectives: it is the one that waits least.
Findings who_is_slow(const Evidence& evidence) {
  if (evidence.ranks.size() < 2) return {};
  std::vector<double> waits;
  for (const RankNotes& notes : evidence.ranks) waits.push_back(sum(notes, is_collective));
  const auto least = std::ranges::min_element(waits);
  const RankNotes& slow = evidence.ranks[static_cast<std::size_t>(least - waits.begin())];
  std::vector<double> others = waits;
  others.erase(others.begin() + (least - waits.begin()));
  const double lost = median(others) - *least;
  if (slow.seconds <= 0 || lost < std::max(kLeastSeconds, kMuchOfTheTime * slow.seconds)) return {};
  Finding finding{
      .weight = Weight::suspicion,
      .what = fmt::format("rank {} is slow: the others waited {:.0f} % of the time for it",
                          slow.rank, 100 * lost / slow.seconds),
      .evidence = {fmt::format("rank {} waited {:.2f} s in collectives, the others {:.2f} s "
                               "(median), most of it in {}",
                               slow.rank, *least, median(others),
                               longest_wait(evidence.ranks, slow.rank))},
      .advice =
          "compare that rank's host and device with the others': clock, temperature, other "
          "programs, cores it is bound to, its share of the data"};
  // A wait or a transfer lies within a phase: it says more.
  const auto excess = excess_of(slow, evidence.ranks);
  for (const bool phases : {false, true}) {
    const auto found = std::ranges::find_if(excess, [&](const auto& each) {
      return (each.second->kind == "phase") == phases && each.first > kMostOfIt * lost;
    });
    if (found == excess.end()) continue;
    finding.evidence.push_back(fmt::format("rank {} spent {:.2f} s more than the others on {}",
                                           slow.rank, found->first, doing(*found->second)));
    break;
  }
  return {finding};
}

Findings how_slow_disks_are(const Evidence& evidence) {
  Findings findings;
  const RankNotes* worst = nullptr;
  double share = kDiskShare;
  for (const RankNotes& notes : evidence.ranks) {
    if (notes.seconds <= 0 || sum(notes, is_disk) < share * notes.seconds) continue;
    worst = &notes;
    share = sum(notes, is_disk) / notes.seconds;
  }
  if (worst != nullptr) {
    std::int64_t bytes = 0;
    for (const OpTime& time : worst->times) bytes += time.kind == "io" ? time.bytes : 0;
    const double waited = sum(*worst, is_disk);
    findings.push_back(
        {.weight = Weight::suspicion,
         .what = fmt::format("the disk holds training up: rank {} waited {:.0f} % of the time for "
                             "it",
                             worst->rank, 100 * share),
         .evidence = {fmt::format("{:.2f} s of {:.2f} s; {} were read and written in all", waited,
                                  worst->seconds, format_bytes(bytes))},
         .advice =
             "measure the disk with `capstan bench io FOLDER`; name a faster one in nvme_path, "
             "or several; keep more in memory (ratio), or let updates run beside forward "
             "(capstan.late_updates)"});
  }
  for (const RankNotes& notes : evidence.ranks) {
    const double saving = sum(notes, is_save);
    if (notes.seconds <= 0 || saving < kSaveShare * notes.seconds) continue;
    findings.push_back({.weight = Weight::suspicion,
                        .what = fmt::format("saving checkpoints took {:.0f} % of the time",
                                            100 * saving / notes.seconds),
                        .evidence = {fmt::format("rank {}: {:.2f} s of {:.2f} s", notes.rank,
                                                 saving, notes.seconds)},
                        .advice = "save less often, in the background, or to a faster disk"});
    break;
  }
  return findings;
}

Findings how_the_loss_went(const Evidence& evidence) {
  const std::vector<StepLine>& steps = evidence.steps;
  Findings findings;
  const auto bad =
      std::ranges::find_if(steps, [](const StepLine& step) { return !step.loss && !step.skipped; });
  if (bad != steps.end()) {
    findings.push_back({.weight = Weight::cause,
                        .what = fmt::format("the loss is inf or NaN from step {} on", bad->step),
                        .evidence = {},
                        .advice = "lower the learning rate or clip gradients; \"capstan\": "
                                  "{\"find_nan\": true} names the module that it comes from"});
  }
  std::vector<double> losses;
  std::size_t spikes = 0;
  std::string largest;
  double most = 0;
  for (const StepLine& step : steps) {
    const std::optional<double> loss = finite_loss(step);
    if (!loss) continue;
    if (losses.size() >= kWindow) {
      const double usual = median({losses.end() - kWindow, losses.end()});
      if (usual > 0 && *loss > kSpike * usual) {
        ++spikes;
        if (*loss / usual > most) {
          most = *loss / usual;
          largest = fmt::format("step {}: {:.4g}, where the {} steps before had {:.4g} (median)",
                                step.step, *loss, kWindow, usual);
        }
      }
    }
    losses.push_back(*loss);
  }
  if (spikes > 0) {
    findings.push_back(
        {.weight = Weight::suspicion,
         .what = fmt::format("the loss jumped up in {}",
                             counted(static_cast<std::int64_t>(spikes), "step")),
         .evidence = {largest},
         .advice = "look at the data of that step; a longer warm-up, a lower learning rate and "
                   "gradient_clipping help against it"});
  }
  if (losses.size() >= 3 * kWindow) {
    const double end = median({losses.end() - kWindow, losses.end()});
    double best = end;
    for (std::size_t i = kWindow; i < losses.size(); ++i) {
      const auto at = losses.begin() + static_cast<std::ptrdiff_t>(i);
      best = std::min(best, median({at - kWindow, at}));
    }
    if (best > 0 && end > kRise * best) {
      findings.push_back(
          {.weight = Weight::suspicion,
           .what = fmt::format("the loss rose again, from {:.4g} to {:.4g}", best, end),
           .evidence = {"medians over 20 steps: the best ones and the last ones"},
           .advice = "continue from a checkpoint before the rise with a lower "
                     "learning rate"});
    }
  }
  return findings;
}

Findings what_was_skipped(const Evidence& evidence) {
  std::int64_t steps = std::ssize(evidence.steps);
  std::int64_t skipped = std::ranges::count_if(evidence.steps, &StepLine::skipped);
  for (const RankNotes& notes : evidence.ranks) {
    if (notes.steps <= steps) continue;
    steps = notes.steps;
    skipped = notes.skipped;
  }
  if (skipped == 0) return {};
  const bool many =
      static_cast<double>(skipped) > kManySkipped * static_cast<double>(steps) && skipped > 2;
  return {{.weight = many ? Weight::suspicion : Weight::remark,
           .what = fmt::format("{} of {} skipped because a gradient was inf or NaN", skipped,
                               counted(steps, "step")),
           .evidence = {},
           .advice = many ? "with fp16 use bf16, or a lower initial_scale_power; otherwise "
                            "\"capstan\": {\"find_nan\": true} names where it comes from"
                          : "a few are usual with fp16, while the loss scale is found"}};
}

Findings how_the_speed_went(const Evidence& evidence) {
  const std::vector<StepLine>& steps = evidence.steps;
  if (steps.size() < kFewSteps) return {};
  const auto speed_of = [&](std::size_t begin, std::size_t end) {
    std::vector<double> speeds;
    for (std::size_t i = begin; i < end; ++i) speeds.push_back(steps[i].tokens_per_s);
    return median(std::move(speeds));
  };
  const double first = speed_of(1, steps.size() / 4);  // the first step warms up
  const double last = speed_of(steps.size() - steps.size() / 4, steps.size());
  if (first <= 0 || last >= kSlowdown * first) return {};
  return {{.weight = Weight::suspicion,
           .what = fmt::format("training became slower: {:.4g} tokens/s in the first quarter, "
                               "{:.4g} in the last",
                               first, last),
           .evidence = {},
           .advice = "look for heat, other programs, a full disk, and memory that grows"}};
}

}  // namespace capstan::cli::doctor
