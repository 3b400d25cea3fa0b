// Whether units are updated in backward, before the step is decided: worth it where the time of
// steps, as measured here, says so.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>

namespace capstan::engine {

// A step counts where the one before it was of the same kind: what an update in backward saves
// shows in the next forward. The shortest of the last few stands for all: it is the least
// disturbed.
// Threads: one caller at a time.
class EarlyChoice {
 public:
  // For the next step: tries both ways at first, then the one with the smaller expected time.
  bool early() const;

  // A step is over. `early`: units were updated in backward. `guessed`: it was applied as it is
  // guessed then; whether that was used or not.
  void step_ended(bool early, bool guessed, std::chrono::nanoseconds time);

 private:
  struct Times {
    std::deque<std::int64_t> last_ns;
    std::int64_t best() const;
  };

  double expected_ns() const;  // of a step with early updates

  Times waiting_;
  Times kept_;     // early, and the guess was right
  Times dropped_;  // early, and it was not
  bool was_early_ = false;
  bool any_before_ = false;
  std::deque<bool> guesses_;  // whether they were right
};

}  // namespace capstan::engine
