#include "capstan/engine/early_choice.h"

#include <algorithm>

namespace capstan::engine {
namespace {

constexpr std::size_t kTimes = 5;     // remembered of each kind
constexpr std::size_t kTrials = 3;    // before a kind is judged
constexpr std::size_t kGuesses = 32;  // remembered

template <typename Value>
void push(std::deque<Value>& values, Value value, std::size_t at_most) {
  values.push_back(value);
  if (values.size() > at_most) values.pop_front();
}

}  // namespace

std::int64_t EarlyChoice::Times::best() const {
  return *std::min_element(last_ns.begin(), last_ns.end());
}

double EarlyChoice::expected_ns() const {
  const auto right = static_cast<double>(std::count(guesses_.begin(), guesses_.end(), true));
  const double chance = right / static_cast<double>(guesses_.size());
  // What was never seen costs as much as the other.
  const Times& kept = kept_.last_ns.empty() ? dropped_ : kept_;
  const Times& dropped = dropped_.last_ns.empty() ? kept_ : dropped_;
  return chance * static_cast<double>(kept.best()) +
         (1 - chance) * static_cast<double>(dropped.best());
}

bool EarlyChoice::early() const {
  if (kept_.last_ns.size() + dropped_.last_ns.size() < kTrials) return true;
  if (waiting_.last_ns.size() < kTrials) return false;
  return expected_ns() < static_cast<double>(waiting_.best());
}

void EarlyChoice::step_ended(bool early, bool guessed, std::chrono::nanoseconds time) {
  push(guesses_, guessed, kGuesses);
  const bool counts = any_before_ && was_early_ == early;
  was_early_ = early;
  any_before_ = true;
  if (!counts) return;
  Times& times = !early ? waiting_ : guessed ? kept_ : dropped_;
  push(times.last_ns, time.count(), kTimes);
}

}  // namespace capstan::engine
