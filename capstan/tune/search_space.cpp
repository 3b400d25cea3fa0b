#include "capstan/tune/search_space.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::tune {

bool Space::makes_sense(const Choice& choice) const {
  const int stage = stage_of(choice);
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const Setting& setting = axes[axis].settings[static_cast<std::size_t>(choice[axis])];
    if (stage < setting.least_stage) return false;
  }
  return true;
}

std::vector<Choice> Space::choices(bool all) const {
  std::vector<Choice> found;
  Choice choice(axes.size(), 0);
  for (;;) {
    if (makes_sense(choice)) found.push_back(choice);
    std::size_t axis = axes.size();
    for (;;) {
      if (axis == 0) return found;
      --axis;
      const bool fixed = !all && axes[axis].reach == Reach::when_needed;
      const int end = fixed ? 1 : static_cast<int>(axes[axis].settings.size());
      if (++choice[axis] < end) break;
      choice[axis] = 0;
    }
  }
}

bool Space::needs_as_much(const Combination& a, const Combination& b) const {
  if (a.micro < b.micro) return false;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const auto of = [&](const Combination& each) -> const Setting& {
      return axes[axis].settings[static_cast<std::size_t>(each.choice[axis])];
    };
    if (a.choice[axis] == b.choice[axis]) continue;
    if (!axes[axis].ordered || of(a).memory < of(b).memory) return false;
  }
  return true;
}

std::int64_t Space::batch_of(const Combination& candidate) const {
  const MicroBatch& micro = micros[static_cast<std::size_t>(candidate.micro)];
  return micro.samples * micro.accumulation_steps * data_ranks;
}

std::string describe(const Space& space, const Combination& candidate) {
  std::string text;
  for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
    const auto at = static_cast<std::size_t>(candidate.choice[axis]);
    // What most configurations never touch is told only where it was touched.
    if (axis > 0 && at == 0 && space.axes[axis].reach == Reach::when_needed) continue;
    text += space.axes[axis].settings[at].label + ", ";
  }
  const MicroBatch& micro = space.micros[static_cast<std::size_t>(candidate.micro)];
  return fmt::format("{}micro-batch {} x {}", text, micro.samples, micro.accumulation_steps);
}

std::string tag(const Space& space, const Combination& candidate) {
  const MicroBatch& micro = space.micros[static_cast<std::size_t>(candidate.micro)];
  std::string text = fmt::format("z{}_gas{}_tmbspg{}", space.stage_of(candidate.choice),
                                 micro.accumulation_steps, micro.samples);
  for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
    const auto& settings = space.axes[axis].settings;
    const Setting& setting = settings[static_cast<std::size_t>(candidate.choice[axis])];
    if (!setting.tag.empty()) text += "_" + setting.tag;
  }
  return text;
}

json::Value apply(const Space& space, const Combination& candidate, json::Value config) {
  for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
    const auto& settings = space.axes[axis].settings;
    for (const auto& [path, value] :
         settings[static_cast<std::size_t>(candidate.choice[axis])].edits) {
      set_at(config, path, value);
    }
  }
  const MicroBatch& micro = space.micros[static_cast<std::size_t>(candidate.micro)];
  set_at(config, "train_batch_size", json::Value(space.batch_of(candidate)));
  set_at(config, "train_micro_batch_size_per_gpu", json::Value(micro.samples));
  set_at(config, "gradient_accumulation_steps", json::Value(micro.accumulation_steps));
  return config;
}

void set_at(json::Value& root, const std::string& path, json::Value value) {
  json::Value* at = &root;
  for (const std::string& part : split(path, '.')) {
    if (at->object() == nullptr) *at = json::Value(json::Object{});
    json::Object& members = *at->object();
    auto found = std::find_if(members.begin(), members.end(),
                              [&](const json::Member& member) { return member.key == part; });
    if (found == members.end()) {
      members.push_back({.key = part, .value = json::Value()});
      found = std::prev(members.end());
    }
    at = &found->value;
  }
  *at = std::move(value);
}

const json::Value* find_at(const json::Value& root, const std::string& path) {
  const json::Value* at = &root;
  for (const std::string& part : split(path, '.')) {
    at = at == nullptr ? nullptr : at->find(part);
  }
  return at;
}

}  // namespace capstan::tune
