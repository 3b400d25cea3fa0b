#include "capstan/cli/estimate/view.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::cli::estimate {
namespace {

using capstan::tune::Candidate;

std::string short_bytes(std::int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

}  // namespace

std::string to_text(capstan::tune::Seconds time) {
  const double seconds = time.count();
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

json::Value to_json(const Candidate& candidate) {
  json::Value value = capstan::tune::to_json(row_of(candidate));
  value.add("title", json::Value(candidate.title))
      .add("ranks", json::Value(candidate.work.ranks))
      .add("step_seconds", json::Value(candidate.time.total().count()))
      .add("tokens_per_second", json::Value(candidate.tokens_per_second));
  return value;
}

capstan::tune::MemoryRow row_of(const Candidate& candidate) {
  return {candidate.work.options, candidate.memory, candidate.lacks};
}

std::string ladder_table(const std::vector<capstan::tune::Step>& ladder) {
  std::string text = fmt::format("{:<29}  {:>10}  {:>10}  {:>10}  {}\n", "step", "device", "host",
                                 "step takes", "");
  for (const capstan::tune::Step& step : ladder) {
    const std::string verdict =
        step.verdict == capstan::tune::Step::Verdict::taken ? "taken: it fits"
        : step.verdict == capstan::tune::Step::Verdict::not_needed
            ? (step.candidate.fits() ? "not needed" : "not needed: " + step.candidate.lacks)
            : "passed: " + step.candidate.lacks;
    text += fmt::format("{:<29}  {:>10}  {:>10}  {:>10}  {}\n", step.title,
                        format_bytes(step.candidate.memory.device_need()),
                        short_bytes(step.candidate.memory.host_need()),
                        to_text(step.candidate.time.total()), verdict);
  }
  return capstan::tune::trim_lines(text);
}

std::string ranking_table(const std::vector<Candidate>& ranking, std::size_t most) {
  std::size_t widest = 0;
  for (std::size_t i = 0; i < std::min(most, ranking.size()); ++i) {
    widest = std::max(widest, ranking[i].title.size());
  }
  std::string text = fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}  {:>12}\n", "", widest, "device",
                                 "host", "step takes", "tokens/s");
  for (std::size_t i = 0; i < std::min(most, ranking.size()); ++i) {
    const Candidate& each = ranking[i];
    text +=
        fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}  {:>12.0f}\n", each.title, widest,
                    format_bytes(each.memory.device_need()), short_bytes(each.memory.host_need()),
                    to_text(each.time.total()), each.tokens_per_second);
  }
  return capstan::tune::trim_lines(text);
}

}  // namespace capstan::cli::estimate
