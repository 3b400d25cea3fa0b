// From a model, a machine and a goal to a configuration: what the ladder from fast to frugal would
// need step by step, and the best of all ways that fit. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/tune/candidate.h"

namespace capstan::tune {

enum class Goal { fastest, largest_batch, fewest_gpus };
std::vector<std::string> goal_names();
Goal goal_named(std::string_view name);  // throws ConfigError

struct Question {
  Workload work;  // options it does not decide stay; its ranks are the most that there are
  Machine machine;
  Goal goal = Goal::fastest;
  std::vector<std::string> nvme_paths;
};

// A step of the ladder: what it would need, and whether it is where to stop.
struct Step {
  std::string title;
  Candidate candidate;
  enum class Verdict { passed, taken, not_needed } verdict = Verdict::passed;
};

struct Plan {
  std::vector<Step> ladder;           // on as many ranks as `best` has, else on all
  std::vector<Candidate> ranking;     // on those ranks: what fits, the best first
  std::optional<Candidate> best;      // unset: nothing fits
  std::optional<Candidate> smallest;  // then: what comes nearest
};

Plan make_plan(const Question& question);

// A configuration of that, with which `capstan train` and programs run.
json::Value configuration_of(const Workload& workload);
// What belongs on the command line of `capstan train` beside it: " -n 8 --pipe 2".
std::string command_options(const Workload& workload);

}  // namespace capstan::tune
