#include "capstan/tune/search.h"

#include <algorithm>
#include <map>
#include <random>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::tune {
namespace {

// A larger micro-batch that gives less than this is not followed by a larger one still.
constexpr double kLeastGain = 1.01;
// Without a single success: the job itself is broken, not a configuration.
constexpr int kMostFailures = 3;
// The same search for the same measurements.
constexpr unsigned kSeed = 20;

class Search {
 public:
  Search(const Space& space, const Options& options, const Measure& measure, const Predict& predict)
      : space_(space),
        options_(options),
        measure_(measure),
        predict_(predict),
        all_axes_(!options.fast) {}

  Answer run() {
    if (options_.order == Order::guided) {
      guided();
    } else {
      all_of(candidates());
    }
    // Whatever fits is better than nothing.
    if (!answer_.best && !over_ && ran_out_of_memory()) frugal();
    if (answer_.ended.empty()) answer_.ended = "every promising setting was tried";
    return std::move(answer_);
  }

 private:
  // Trials

  // Its score; nothing where it did not get that far, or is known not to fit.
  std::optional<double> attempt(const Combination& candidate) {
    if (const auto known = tried_.find(candidate); known != tried_.end()) return known->second;
    if (over_) return std::nullopt;
    if (lacks_memory(candidate)) {
      ++answer_.skipped;
      return tried_[candidate] = std::nullopt;
    }
    const Outcome outcome = measure_(candidate, more());
    if (outcome.end == End::stopped) {
      end("it was stopped");
      return std::nullopt;
    }
    return take(candidate, outcome);
  }

  std::optional<double> take(const Combination& candidate, const Outcome& outcome) {
    answer_.trials.push_back({candidate, outcome});
    std::optional<double> got;
    if (outcome.end == End::measured) got = score(outcome, options_.metric);
    tried_[candidate] = got;
    if (got && (!best_ || *got > *best_)) {
      best_ = got;
      answer_.best = answer_.trials.back();
      since_best_ = 0;
    } else if (outcome.end != End::out_of_memory) {
      ++since_best_;
    }
    judge(outcome);
    return got;
  }

  void judge(const Outcome& outcome) {
    if (outcome.end == End::failed || outcome.end == End::too_long) ++failures_;
    const int trials = static_cast<int>(answer_.trials.size());
    if (!best_ && failures_ >= kMostFailures) {
      end(fmt::format("{} have failed, and none has worked", counted(failures_, "trial")));
    } else if (trials >= options_.most_trials) {
      end(fmt::format("{} were allowed", counted(options_.most_trials, "trial")));
    }
  }

  void lose_patience() {
    if (!best_ || options_.early_stopping == 0 || since_best_ < options_.early_stopping) return;
    end(fmt::format("{} in a row brought no gain", counted(since_best_, "trial")));
  }

  void end(std::string why) {
    if (!over_) answer_.ended = std::move(why);
    over_ = true;
  }

  // As certain as it can be: another one that needs no more had too little, or took too long with
  // the same settings and a smaller micro-batch.
  bool lacks_memory(const Combination& candidate) const {
    return std::any_of(answer_.trials.begin(), answer_.trials.end(), [&](const Trial& trial) {
      if (trial.outcome.end == End::too_long) {
        return trial.candidate.choice == candidate.choice &&
               trial.candidate.micro < candidate.micro;
      }
      return trial.outcome.end == End::out_of_memory &&
             space_.needs_as_much(candidate, trial.candidate);
    });
  }

  bool ran_out_of_memory() const {
    return std::any_of(answer_.trials.begin(), answer_.trials.end(),
                       [](const Trial& trial) { return trial.outcome.end == End::out_of_memory; });
  }

  // A guess for a person who waits: what is in sight, as long as nothing changes.
  int more() const {
    const int left = options_.most_trials - static_cast<int>(answer_.trials.size()) - 1;
    const int patience = options_.early_stopping > 0 ? options_.early_stopping : left;
    return std::max(0, std::min({left, patience, in_sight_}));
  }

  // Orders

  std::vector<Combination> candidates() const {
    std::vector<Combination> found;
    for (const Choice& choice : space_.choices(all_axes_)) {
      for (int micro = 0; micro < static_cast<int>(space_.micros.size()); ++micro) {
        found.push_back({choice, micro});
      }
    }
    return found;
  }

  void all_of(std::vector<Combination> candidates) {
    if (options_.order == Order::random) {
      std::mt19937 generator(kSeed);
      for (std::size_t i = candidates.size(); i > 1; --i) {  // as std::shuffle, the same everywhere
        std::swap(candidates[i - 1], candidates[generator() % i]);
      }
    }
    in_sight_ = static_cast<int>(candidates.size());
    for (const Combination& candidate : candidates) {
      --in_sight_;
      attempt(candidate);
      lose_patience();
    }
  }

  void guided() {
    const Combination start = first();
    in_sight_ = static_cast<int>(neighbours(start.choice).size());
    climb(start, static_cast<int>(space_.micros.size()));
    if (!best_) {
      for (const Choice& choice : neighbours(start.choice)) {
        climb({choice, start.micro}, static_cast<int>(space_.micros.size()));
        if (best_) break;
      }
    }
    while (best_ && !over_ && step_to_neighbour()) {
    }
  }

  // The configuration's own settings, unless a prediction knows better.
  Combination first() const {
    Combination start{Choice(space_.axes.size(), 0), space_.first_micro};
    const auto own = ask(start);
    if (!own) return start;
    double least = own->fits() ? predicted_score(start) : 0;
    for (const Combination& candidate : candidates()) {
      const auto prediction = ask(candidate);
      if (!prediction || !prediction->fits() || predicted_score(candidate) <= least) continue;
      least = predicted_score(candidate);
      start = candidate;
    }
    return start;
  }

  // One change of the best configuration after another; true when one of them was better.
  bool step_to_neighbour() {
    const Combination from = answer_.best->candidate;
    const std::vector<Choice> next = neighbours(from.choice);
    in_sight_ = static_cast<int>(next.size());
    for (const Choice& choice : next) {
      --in_sight_;
      climb({choice, from.micro}, options_.micro_sizes);
      lose_patience();  // but what has begun is finished
      if (over_) return false;
      if (answer_.best->candidate != from) return true;
    }
    return false;
  }

  // What differs from `choice` in one axis and was not tried; the most promising first.
  std::vector<Choice> neighbours(const Choice& choice) const {
    std::vector<Choice> found;
    for (std::size_t axis = 0; axis < space_.axes.size(); ++axis) {
      if (!all_axes_ && space_.axes[axis].reach == Reach::when_needed) continue;
      for (int at = 0; at < static_cast<int>(space_.axes[axis].settings.size()); ++at) {
        Choice other = choice;
        other[axis] = at;
        if (at != choice[axis] && !visited(other) && space_.makes_sense(other)) {
          found.push_back(std::move(other));
        }
      }
    }
    const int micro = answer_.best ? answer_.best->candidate.micro : space_.first_micro;
    std::stable_sort(found.begin(), found.end(), [&](const Choice& a, const Choice& b) {
      return predicted_score({a, micro}) > predicted_score({b, micro});
    });
    return found;
  }

  bool visited(const Choice& choice) const {
    const auto found = tried_.lower_bound({choice, 0});
    return found != tried_.end() && found->first.choice == choice;
  }

  // Micro-batch sizes of one choice, from `start` on, at most so many.
  void climb(const Combination& start, int most) {
    const std::optional<double> before = best_;
    Combination at = start;
    std::optional<double> got = attempt(at);
    while (!got && fits_if_smaller(at) && --most > 0) {
      --at.micro;
      got = attempt(at);
    }
    if (!got || over_) return;
    const bool best = !before || *got > *before;
    if (at.micro == start.micro && (best || memory_was_the_limit(at))) {
      if (climb_on(at, *got, +1, most) || !best) return;
    }
    if (best) climb_on(at, *got, -1, most);
  }

  // Whether a smaller micro-batch may help: it did not fit, or was known not to.
  bool fits_if_smaller(const Combination& at) const {
    if (over_ || at.micro == 0) return false;
    const auto trial = std::find_if(answer_.trials.begin(), answer_.trials.end(),
                                    [&](const Trial& each) { return each.candidate == at; });
    return trial == answer_.trials.end() || trial->outcome.end == End::out_of_memory ||
           trial->outcome.end == End::too_long;
  }

  // The best one would have liked a larger micro-batch than fits; `at` may have the room.
  bool memory_was_the_limit(const Combination& at) const {
    if (!answer_.best) return false;
    Combination larger = answer_.best->candidate;
    if (++larger.micro >= static_cast<int>(space_.micros.size())) return false;
    return lacks_memory(larger) && !lacks_memory({at.choice, larger.micro});
  }

  // As long as it pays; whether it did.
  bool climb_on(Combination at, double got, int direction, int most) {
    bool gained = false;
    while (--most > 0 && !over_) {
      at.micro += direction;
      if (at.micro < 0 || at.micro >= static_cast<int>(space_.micros.size())) break;
      const std::optional<double> next = attempt(at);
      if (!next || *next < got * kLeastGain) {
        gained |= next && *next > got;
        break;
      }
      got = *next;
      gained = true;
    }
    return gained;
  }

  // Nothing has fitted: what needs least, and from there to what is faster.
  void frugal() {
    all_axes_ = true;
    const auto memory = [&](const Choice& choice) {
      int sum = 0;
      for (std::size_t axis = 0; axis < space_.axes.size(); ++axis) {
        const Axis& of = space_.axes[axis];
        if (of.ordered) sum += of.settings[static_cast<std::size_t>(choice[axis])].memory;
      }
      return sum;
    };
    const std::vector<Choice> choices = space_.choices(all_axes_);
    const auto least =
        std::min_element(choices.begin(), choices.end(),
                         [&](const Choice& a, const Choice& b) { return memory(a) < memory(b); });
    climb({*least, 0}, static_cast<int>(space_.micros.size()));
    while (best_ && !over_ && step_to_neighbour()) {
    }
    if (!best_) end("not even the most frugal setting fits");
  }

  // Predictions

  std::optional<Prediction> ask(const Combination& candidate) const {
    if (!predict_) return std::nullopt;
    const auto [at, is_new] = asked_.emplace(candidate, std::nullopt);
    if (is_new) at->second = predict_(candidate);
    return at->second;
  }

  // Zero for what is not expected to fit, and where nothing is known: the given order stays.
  double predicted_score(const Combination& candidate) const {
    const auto prediction = ask(candidate);
    if (!prediction || !prediction->fits() || prediction->seconds <= 0) return 0;
    const double samples = static_cast<double>(space_.batch_of(candidate));
    return score({.end = End::measured,
                  .latency = prediction->seconds,
                  .throughput = samples / prediction->seconds},
                 options_.metric);
  }

  const Space& space_;
  const Options& options_;
  const Measure& measure_;
  const Predict& predict_;
  Answer answer_;
  std::map<Combination, std::optional<double>> tried_;  // those that were skipped have no score
  mutable std::map<Combination, std::optional<Prediction>> asked_;
  std::optional<double> best_;
  int since_best_ = 0;
  int failures_ = 0;
  int in_sight_ = 0;
  bool all_axes_;
  bool over_ = false;
};

}  // namespace

double score(const Outcome& outcome, Metric metric) {
  if (metric == Metric::latency) return outcome.latency > 0 ? 1 / outcome.latency : 0;
  return outcome.throughput;
}

Answer search(const Space& space, const Options& options, const Measure& measure,
              const Predict& predict) {
  return Search(space, options, measure, predict).run();
}

}  // namespace capstan::tune
