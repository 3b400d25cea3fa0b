#include "capstan/cli/doctor/judge.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"

namespace capstan::cli::doctor {
namespace {

using profile::Fingerprint;
using profile::RankNotes;

constexpr std::size_t kMostLines = 6;  // of a rank's last ones, as evidence
constexpr double kFullShare = 0.9;     // of a host's memory

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The end of what a rank said.
void add_lines(const std::vector<std::string>& lines, int rank, std::vector<std::string>& into) {
  const std::size_t begin = lines.size() > kMostLines ? lines.size() - kMostLines : 0;
  for (std::size_t i = begin; i < lines.size(); ++i) {
    if (!trim(lines[i]).empty()) into.push_back(fmt::format("[rank {}] {}", rank, lines[i]));
  }
}

std::string advice_for(const launch::Ending& ending) {
  if (ending.out_of_memory) {
    return "use less host memory: fewer ranks per host (-n), fewer data loader workers, or state "
           "on NVMe instead of the CPU; or raise the limit";
  }
  if (ending.signal == SIGKILL || ending.signal == SIGTERM) {
    return "ask who stopped it: the scheduler's time limit, an operator, or another program; "
           "`dmesg` tells of kills for memory. Continue with --resume";
  }
  return "see to this rank's own error; those of the other ranks follow from it";
}

const RankNotes* notes_of(const Evidence& evidence, int rank) {
  const auto found = std::ranges::find(evidence.ranks, rank, &RankNotes::rank);
  return found == evidence.ranks.end() ? nullptr : &*found;
}

bool tells_of_another_way(const std::string& text) {
  return text.find("does not match") != std::string::npos ||
         text.find("gather different units") != std::string::npos ||
         text.find("call different") != std::string::npos;
}

bool tells_of_timeout(const std::string& text) {
  return text.find("did not finish within") != std::string::npos;
}

// What each rank says of an error: its notes, or its last lines.
std::string words_of(const Evidence& evidence, int rank) {
  const RankNotes* const notes = notes_of(evidence, rank);
  if (notes != nullptr && !notes->error.empty()) return notes->error;
  if (!evidence.job || rank >= std::ssize(evidence.job->ranks)) return "";
  return fmt::format(
      "{}", fmt::join(evidence.job->ranks[static_cast<std::size_t>(rank)].last_lines, "\n"));
}

std::vector<int> ranks_of(const Evidence& evidence) {
  std::vector<int> ranks;
  const std::ptrdiff_t count =
      evidence.job ? std::ssize(evidence.job->ranks) : std::ssize(evidence.ranks);
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    ranks.push_back(evidence.job ? static_cast<int>(i)
                                 : evidence.ranks[static_cast<std::size_t>(i)].rank);
  }
  return ranks;
}

std::string line_with(const std::string& text, bool (*tells)(const std::string&)) {
  for (const std::string& line : split(text, '\n')) {
    if (tells(line)) return std::string(trim(line));
  }
  return first_line(text);
}

// The units whose numbers are not the same.
std::string first_difference(const Fingerprint& a, const Fingerprint& b) {
  for (const auto& [unit, number] : a.units) {
    const auto other =
        std::ranges::find(b.units, unit, &std::pair<std::string, std::int64_t>::first);
    if (other != b.units.end() && other->second != number) return unit;
  }
  return "";
}

}  // namespace

Findings who_stopped_first(const Evidence& evidence) {
  if (!evidence.job || evidence.job->exit_code == 0) return {};
  const JobRecord& job = *evidence.job;
  Finding finding{.weight = Weight::cause, .what = job.sentence, .evidence = {}, .advice = ""};
  const int first = job.first_failed_rank;
  if (first < 0) return {finding};
  const RankEnd& end = job.ranks[static_cast<std::size_t>(first)];
  finding.what = fmt::format("rank {} stopped first: it {}", first, describe(end.ending));
  finding.advice = advice_for(end.ending);
  const RankNotes* const notes = notes_of(evidence, first);
  if (notes != nullptr) {
    finding.evidence.push_back(fmt::format("its last notes tell of {}, {:.1f} s after its start",
                                           counted(notes->steps, "step"), notes->seconds));
  }
  add_lines(end.last_lines, first, finding.evidence);
  for (std::size_t rank = 0; rank < job.ranks.size() && rank < kMostLines; ++rank) {
    if (static_cast<int>(rank) == first) continue;
    finding.evidence.push_back(fmt::format("rank {} ended {:.1f} s later: it {}", rank,
                                           job.ranks[rank].after_s - end.after_s,
                                           describe(job.ranks[rank].ending)));
  }
  return {finding};
}

Findings who_went_another_way(const Evidence& evidence) {
  std::vector<int> waited;  // in vain
  std::vector<int> others;
  for (const int rank : ranks_of(evidence)) {
    const std::string words = words_of(evidence, rank);
    if (tells_of_another_way(words)) {
      return {
          {.weight = Weight::cause,
           .what = "the ranks called different collectives",
           .evidence = {fmt::format("[rank {}] {}", rank, line_with(words, &tells_of_another_way))},
           .advice = "all ranks must call the same modules in the same order and take the same "
                     "number of steps: look for a branch that depends on the rank or its "
                     "data"}};
    }
    (tells_of_timeout(words) ? waited : others).push_back(rank);
  }
  if (waited.empty() || others.empty()) return {};
  Finding finding{.weight = Weight::cause,
                  .what = fmt::format("rank {} did not come to a collective that the others "
                                      "waited for",
                                      fmt::join(others, ", ")),
                  .evidence = {},
                  .advice =
                      "find out where that rank stood (py-spy dump, gdb -p); if it was only "
                      "slow, raise capstan.timeout_s"};
  for (const int rank : waited) {
    if (finding.evidence.size() == kMostLines) break;
    finding.evidence.push_back(
        fmt::format("[rank {}] {}", rank, line_with(words_of(evidence, rank), &tells_of_timeout)));
  }
  return {finding};
}

Findings what_was_not_finite(const Evidence& evidence) {
  // Outputs before gradients: a gradient is bad where what it comes from is.
  for (const char* const kind : {"the output of", "the gradient of", "the summed gradient of"}) {
    Finding finding{.weight = Weight::cause, .what = "", .evidence = {}, .advice = ""};
    std::int64_t first = -1;
    for (const RankNotes& notes : evidence.ranks) {
      for (const std::string& seen : notes.not_finite) {
        const std::size_t colon = seen.find(": ");
        if (colon == std::string::npos || !seen.starts_with("step ") ||
            seen.compare(colon + 2, std::string(kind).size(), kind) != 0) {
          continue;
        }
        const std::int64_t step = std::strtoll(seen.c_str() + 5, nullptr, 10);
        if (finding.evidence.size() < kMostLines) {
          finding.evidence.push_back(fmt::format("[rank {}] {}", notes.rank, seen));
        }
        if (first >= 0 && first <= step) continue;
        first = step;
        finding.what = fmt::format("{} is inf or NaN, first in step {} on rank {}",
                                   seen.substr(colon + 2), step, notes.rank);
      }
    }
    if (first < 0) continue;
    const bool named = std::string(kind) == "the output of";
    finding.weight =
        std::string(kind) == "the summed gradient of" ? Weight::suspicion : Weight::cause;
    finding.advice = named ? "look at that module's inputs and weights in that step: a division, a "
                             "logarithm or a root, or a learning rate that is too high"
                           : "train again with \"capstan\": {\"find_nan\": true}, which names the "
                             "module whose output is the first that is not finite";
    return {finding};
  }
  return {};
}

Findings whose_parameters_differ(const Evidence& evidence) {
  for (std::size_t a = 0; a < evidence.ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < evidence.ranks.size(); ++b) {
      const RankNotes& one = evidence.ranks[a];
      const RankNotes& other = evidence.ranks[b];
      if (one.model_part != other.model_part) continue;
      for (const Fingerprint& mine : one.fingerprints) {
        const auto theirs = std::ranges::find(other.fingerprints, mine.step, &Fingerprint::step);
        if (theirs == other.fingerprints.end()) continue;
        const std::string unit = first_difference(mine, *theirs);
        if (unit.empty()) continue;
        return {
            {.weight = Weight::cause,
             .what = fmt::format("ranks {} and {} trained different models: after step {} their "
                                 "parameters of '{}' differ",
                                 one.rank, other.rank, mine.step, unit),
             .evidence = {"copies of the same parameters must have the same bits on all ranks"},
             .advice = "look for code that changes parameters on one rank only: an in-place "
                       "change, a load without a broadcast, weights tied after the start"}};
      }
    }
    if (a > 0 && evidence.ranks.size() > 256) break;  // the first two against all are enough
  }
  return {};
}

std::vector<Finding> judge(const Evidence& evidence) {
  std::vector<Finding> all;
  for (const auto& question :
       {who_went_another_way, what_was_not_finite, whose_parameters_differ, who_stopped_first,
        who_is_slow, how_slow_disks_are, how_full_the_host_is, how_the_loss_went, what_was_skipped,
        how_the_speed_went}) {
    std::ranges::move(question(evidence), std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &Finding::weight);
  return all;
}

Findings how_full_the_host_is(const Evidence& evidence) {
  if (!evidence.job) return {};
  const std::int64_t limit = evidence.job->memory_limit_bytes;
  std::int64_t used = 0;
  for (const RankEnd& rank : evidence.job->ranks) used += rank.ending.peak_rss_bytes;
  if (limit == 0 || static_cast<double>(used) < kFullShare * static_cast<double>(limit)) return {};
  return {{.weight = Weight::suspicion,
           .what = fmt::format("host memory is nearly full: the ranks together used {} of {} ({})",
                               format_bytes(used), format_bytes(limit),
                               evidence.job->memory_limit_name),
           .evidence = {},
           .advice = "fewer ranks per host, fewer data loader workers, or state on NVMe"}};
}

}  // namespace capstan::cli::doctor
