// What changes data and depth from step to step: the curriculum, layers that are dropped.
#include <cmath>

#include "capstan/config/apply.h"

namespace capstan::config {
namespace {

std::vector<std::int64_t> whole_numbers(const Table& table, const std::string& path) {
  std::vector<std::int64_t> numbers;
  for (const double each : table.numbers(path)) {
    numbers.push_back(static_cast<std::int64_t>(std::floor(each)));
  }
  return numbers;
}

schedule::Growth to_growth(const std::string& type) {
  if (type == "fixed_discrete") return schedule::Growth::fixed_discrete;
  if (type == "fixed_root") return schedule::Growth::fixed_root;
  return type == "custom" ? schedule::Growth::custom : schedule::Growth::fixed_linear;
}

}  // namespace

schedule::Curriculum growth_in(const Table& table, const std::string& path) {
  const std::string config = join_path(path, "schedule_config.");
  schedule::Curriculum growth;
  growth.growth = to_growth(table.text(join_path(path, "schedule_type")));
  growth.min = table.maybe_integer(join_path(path, "min_difficulty")).value_or(0);
  growth.max = table.maybe_integer(join_path(path, "max_difficulty")).value_or(0);
  growth.difficulties = whole_numbers(table, config + "difficulty");
  growth.last_steps = whole_numbers(table, config + "max_step");
  growth.total_steps = table.maybe_integer(config + "total_curriculum_step").value_or(0);
  growth.multiple = table.maybe_integer(config + "difficulty_step").value_or(0);
  growth.root = table.maybe_integer(config + "root_degree").value_or(1);
  return growth;
}

std::optional<schedule::Curriculum> to_curriculum(const Table& table) {
  if (!table.flag("curriculum_learning.enabled")) return {};
  schedule::Curriculum curriculum = growth_in(table, "curriculum_learning");
  if (table.text("capstan.curriculum_cut") == "reshape") {
    curriculum.cut = schedule::SequenceCut::reshape;
  }
  return curriculum;
}

std::optional<schedule::LayerDrop> to_layer_drop(const Table& table) {
  if (!table.flag("progressive_layer_drop.enabled")) return {};
  return schedule::LayerDrop{.theta = table.number("progressive_layer_drop.theta"),
                             .gamma = table.number("progressive_layer_drop.gamma")};
}

}  // namespace capstan::config
