// What a person sees of a search: a line per trial, and the answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "capstan/tune/search.h"

namespace capstan::cli::tune {

class View {
 public:
  // terminal: the line of a trial is there while it runs. quiet: only the answer.
  enum class Mode { terminal, lines, quiet };

  // `tokens_per_sample`: 0: unknown.
  View(const capstan::tune::Space& space, const capstan::tune::Options& options,
       std::int64_t tokens_per_sample, Mode mode);

  void begin(const std::string& results, int ranks) const;
  void trial_begins(const capstan::tune::Combination& candidate, int more);
  // `before`: it had ended in an earlier search.
  void trial_ended(const capstan::tune::Combination& candidate,
                   const capstan::tune::Outcome& outcome, bool before);

  // The table of trials, the best of them and why, and how the search ended.
  std::string summary(const capstan::tune::Answer& answer) const;

 private:
  using Clock = std::chrono::steady_clock;

  std::string measured(const capstan::tune::Outcome& outcome) const;
  std::string left() const;
  void say(const std::string& text) const;

  const capstan::tune::Space& space_;
  const capstan::tune::Options& options_;
  const std::int64_t tokens_per_sample_;
  const Mode mode_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point trial_began_;
  std::chrono::duration<double> in_trials_{0};
  int ran_ = 0;
  int number_ = 0;
  int more_ = 0;
  double best_ = 0;
};

}  // namespace capstan::cli::tune
