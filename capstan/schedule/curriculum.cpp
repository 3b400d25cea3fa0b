#include "capstan/schedule/curriculum.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "capstan/base/error.h"

namespace capstan::schedule {
namespace {

class Problems {
 public:
  void need(bool good, const std::string& problem) {
    if (!good) text += (text.empty() ? "" : "; ") + problem;
  }
  void need_positive(std::int64_t value, const std::string& key) {
    need(value > 0, key + (value == 0 ? " is missing or 0" : " is negative"));
  }

  std::string text;
};

void inspect_list(const Curriculum& curriculum, Problems& problems) {
  const auto& steps = curriculum.last_steps;
  problems.need(curriculum.difficulties.size() == steps.size() + 1,
                "difficulty has " + std::to_string(curriculum.difficulties.size()) +
                    " values and max_step " + std::to_string(steps.size()) +
                    "; the last difficulty has no end, so it must have one more than max_step");
  problems.need(std::ranges::is_sorted(curriculum.difficulties), "difficulty falls");
  problems.need(std::ranges::all_of(curriculum.difficulties, [](auto d) { return d > 0; }),
                "difficulty has values below 1");
  const bool rising = std::ranges::adjacent_find(steps, std::greater_equal{}) == steps.end();
  problems.need(rising && (steps.empty() || steps.front() > 0),
                "max_step must rise from a step of at least 1");
}

}  // namespace

void check(const Curriculum& curriculum, const std::string& where) {
  Problems problems;
  problems.need_positive(curriculum.min, "min_difficulty");
  problems.need_positive(curriculum.max, "max_difficulty");
  problems.need(curriculum.max >= curriculum.min,
                "max_difficulty " + std::to_string(curriculum.max) + " is below min_difficulty " +
                    std::to_string(curriculum.min));
  if (curriculum.growth == Growth::fixed_discrete) inspect_list(curriculum, problems);
  if (curriculum.growth == Growth::fixed_root || curriculum.growth == Growth::fixed_linear) {
    problems.need_positive(curriculum.total_steps, "schedule_config.total_curriculum_step");
    problems.need_positive(curriculum.multiple, "schedule_config.difficulty_step");
    problems.need_positive(curriculum.root, "schedule_config.root_degree");
  }
  if (problems.text.empty()) return;
  throw ConfigError({.what = "this curriculum cannot work: " + problems.text,
                     .where = where,
                     .fix = "see the schedules and their keys in docs/data_efficiency.md"});
}

std::string warning(const Curriculum& curriculum) {
  const bool rounds =
      curriculum.growth == Growth::fixed_root || curriculum.growth == Growth::fixed_linear;
  if (!rounds || curriculum.multiple % 8 == 0) return "";
  return "difficulty_step is " + std::to_string(curriculum.multiple) +
         ": if it counts tokens of a sequence, lengths that are no multiple of 8 make matrix "
         "products slow on GPUs";
}

std::int64_t difficulty_at(const Curriculum& curriculum, std::int64_t step) {
  if (curriculum.growth == Growth::fixed_discrete) {
    const auto last = std::ranges::lower_bound(curriculum.last_steps, step);
    return curriculum.difficulties[static_cast<std::size_t>(last - curriculum.last_steps.begin())];
  }
  const double share = std::pow(static_cast<double>(std::max<std::int64_t>(step, 0)) /
                                    static_cast<double>(curriculum.total_steps),
                                1.0 / static_cast<double>(curriculum.root));
  if (share >= 1) return curriculum.max;  // rounding it down would never reach an odd end
  const auto range = static_cast<double>(curriculum.max - curriculum.min);
  const auto grown =
      static_cast<std::int64_t>(std::floor(share * range + static_cast<double>(curriculum.min)));
  const std::int64_t multiple = curriculum.multiple;
  const std::int64_t first = (curriculum.min + multiple - 1) / multiple * multiple;
  return std::min(std::max(grown - grown % multiple, first), curriculum.max);
}

}  // namespace capstan::schedule
