#include "capstan/cli/tune/view.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/tune/trial.h"

namespace capstan::cli::tune {
namespace {

using capstan::tune::End;
using capstan::tune::Outcome;

std::string time_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string short_text(const std::string& text) {
  constexpr std::size_t kMost = 160;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string failure(const Outcome& outcome) {
  const std::string why = outcome.why.empty() ? "" : ": " + short_text(outcome.why);
  return std::string(to_string(outcome.end)) + why;
}

}  // namespace

View::View(const capstan::tune::Space& space, const capstan::tune::Options& options,
           std::int64_t tokens_per_sample, Mode mode)
    : space_(space), options_(options), tokens_per_sample_(tokens_per_sample), mode_(mode) {}

void View::say(const std::string& text) const {
  if (mode_ == Mode::quiet) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void View::begin(const std::string& results, int ranks) const {
  const auto& micros = space_.micros;
  std::string stages;
  const auto& settings = space_.axes.front().settings;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const bool later =
        i > 0 && options_.fast && space_.axes.front().reach == capstan::tune::Reach::when_needed;
    if (!later) stages += (i > 0 ? ", " : "") + std::to_string(space_.stages[i]);
  }
  say(fmt::format("tuning on {}: stage {}; micro-batches from {} to {}; results in {}\n",
                  counted(ranks, "rank"), stages, micros.front().samples, micros.back().samples,
                  results));
}

void View::trial_begins(const capstan::tune::Combination& candidate, int more) {
  trial_began_ = Clock::now();
  more_ = more;
  if (mode_ != Mode::terminal) return;
  say(fmt::format("\rtrial {}: {} ...{}\033[K", number_ + 1, describe(space_, candidate), left()));
}

std::string View::left() const {
  if (ran_ == 0) return "";
  return fmt::format("; about {} left", time_text(in_trials_.count() / ran_ * (more_ + 1)));
}

void View::trial_ended(const capstan::tune::Combination& candidate, const Outcome& outcome,
                       bool before) {
  if (!before) {
    in_trials_ += Clock::now() - trial_began_;
    ++ran_;
  }
  ++number_;
  std::string text = failure(outcome);
  if (outcome.end == End::measured) {
    const double score = capstan::tune::score(outcome, options_.metric);
    text = measured(outcome) + (score > best_ ? ", best so far" : "");
    best_ = std::max(best_, score);
  }
  if (before) text += " (from before)";
  const bool redraws = mode_ == Mode::terminal;
  const bool last = more_ == 0 || before;
  --more_;
  say(fmt::format("{}trial {}: {}: {}{}{}\n", redraws ? "\r" : "", number_,
                  describe(space_, candidate), text, last || redraws ? "" : left(),
                  redraws ? "\033[K" : ""));
}

std::string View::measured(const Outcome& outcome) const {
  const std::string tokens =
      tokens_per_sample_ == 0
          ? ""
          : fmt::format(" ({:.0f} tokens/s)",
                        outcome.throughput * static_cast<double>(tokens_per_sample_));
  return fmt::format("{:.4g} samples/s{}, {:.4g} ms per step, {}", outcome.throughput, tokens,
                     1000 * outcome.latency, format_bytes(outcome.memory_bytes));
}

std::string View::summary(const capstan::tune::Answer& answer) const {
  const std::chrono::duration<double> took = Clock::now() - began_;
  std::string text = "\n";
  if (answer.best) {
    text += fmt::format("best: {}: {}\n", describe(space_, answer.best->candidate),
                        measured(answer.best->outcome));
    for (const std::string& reason : reasons(space_, answer, options_.metric)) {
      text += "  " + reason + "\n";
    }
  } else {
    text += "no configuration has worked\n";
  }
  text += fmt::format("{} in {}; {}", counted(std::ssize(answer.trials), "trial"),
                      time_text(took.count()), answer.ended);
  if (answer.skipped > 0) {
    text += fmt::format(
        "; {} left out, which would have needed more memory than others that did "
        "not fit",
        answer.skipped);
  }
  return text + "\n";
}

}  // namespace capstan::cli::tune
