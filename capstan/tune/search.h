// The search for the fastest configuration that fits: which candidate is tried next, when to stop,
// and why the answer is the answer. Pure: what a trial is, the caller knows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capstan/tune/options.h"
#include "capstan/tune/search_space.h"

namespace capstan::tune {

// How a trial ended.
enum class End {
  measured,
  out_of_memory,
  failed,
  too_long,  // it did not get there in time: it hangs, or is far too slow
  stopped,   // the user wants no more trials
};

struct Outcome {
  End end = End::failed;
  double latency = 0;     // seconds per step
  double throughput = 0;  // samples per second, over all ranks
  std::int64_t memory_bytes = 0;
  std::string why;  // not measured: what happened
  bool operator==(const Outcome&) const = default;
};

struct Trial {
  Combination candidate;
  Outcome outcome;
};

// What a model of the machine expects.
struct Prediction {
  std::int64_t bytes = 0;        // on the fullest device
  std::int64_t limit_bytes = 0;  // that it has; 0: unknown
  double seconds = 0;            // of a step

  bool fits() const { return limit_bytes == 0 || bytes <= limit_bytes; }
};
using Predict = std::function<std::optional<Prediction>(const Combination&)>;

// Runs one trial. `more` is how many are likely to follow.
using Measure = std::function<Outcome(const Combination&, int more)>;

struct Answer {
  std::optional<Trial> best;
  std::vector<Trial> trials;  // in their order
  int skipped = 0;            // they would have needed more memory than one that had too little
  std::string ended;          // why the search was over
};

// Larger is better.
double score(const Outcome& outcome, Metric metric);

// Always answers: whatever trials do, and where `measure` says that it was stopped, with what is
// known by then. `predict` may be empty.
Answer search(const Space& space, const Options& options, const Measure& measure,
              const Predict& predict = {});

// What the best has over the trials that differ from it in one thing, as sentences.
std::vector<std::string> reasons(const Space& space, const Answer& answer, Metric metric);

}  // namespace capstan::tune
