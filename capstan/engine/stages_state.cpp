#include "capstan/engine/stages_state.h"

#include <algorithm>
#include <string>
#include <vector>

#include "capstan/base/text.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

using checkpoint::TrainingState;

// In no name.
constexpr char kNameEnd = '\0';
// A fact has three fields: what it is about, and one or two names.
constexpr std::size_t kFactFields = 3;
constexpr const char* kFrozen = "frozen";
constexpr const char* kBuffer = "buffer";
constexpr const char* kAlias = "alias";

std::string facts_text(const TrainingState& state) {
  std::string text;
  const auto say = [&text](const std::string& about, const std::string& a, const std::string& b) {
    for (const std::string& field : {about, a, b}) text += field + kNameEnd;
  };
  for (const std::string& name : state.frozen) say(kFrozen, name, "");
  for (const std::string& name : state.buffers) say(kBuffer, name, "");
  for (const auto& [alias, owner] : state.aliases) say(kAlias, alias, owner);
  for (std::size_t group = 0; group < state.param_groups.size(); ++group) {
    for (const std::string& name : state.param_groups[group].params) {
      say(std::to_string(group), name, "");
    }
  }
  return text;
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

void add_facts(TrainingState& state, const std::string& text) {
  const std::vector<std::string> fields = split(text, kNameEnd);
  for (std::size_t i = 0; i + kFactFields <= fields.size(); i += kFactFields) {
    const std::string& about = fields[i];
    const std::string& name = fields[i + 1];
    if (about == kFrozen) {
      add_once(state.frozen, name);
    } else if (about == kBuffer) {
      add_once(state.buffers, name);
    } else if (about == kAlias) {
      state.aliases[name] = fields[i + 2];
    } else {
      const std::size_t group = std::stoul(about);
      if (group >= state.param_groups.size()) state.param_groups.resize(group + 1);
      add_once(state.param_groups[group].params, name);
    }
  }
}

// What the first rank of each stage says; nothing without a pipeline.
std::vector<std::string> from_stages(const Common& common, const std::string& mine) {
  const layout::Mesh& mesh = common.mesh.mesh();
  const int stages = mesh.size(layout::Axis::pipe);
  std::vector<std::string> texts;
  if (stages == 1) return texts;
  const int stage_size = mesh.world_size() / stages;  // pipe is the outermost axis
  for (int stage = 0; stage < stages; ++stage) {
    texts.push_back(text_from(common.group, common.device(), mine, stage * stage_size));
  }
  return texts;
}

}  // namespace

void merge_stages(const Common& common, TrainingState& state) {
  for (const std::string& text : from_stages(common, facts_text(state))) add_facts(state, text);
}

std::set<std::string> names_of_stages(const Common& common, const StoredNames& names) {
  std::string mine;
  for (int p = 0; p < static_cast<int>(common.sharded.plan().params.size()); ++p) {
    for (const std::string& name : names.all_names(p)) mine += name + kNameEnd;
  }
  for (const NamedTensor& buffer : common.extras.buffers) {
    mine += names.buffer_name(buffer.name) + kNameEnd;
  }
  std::set<std::string> all;
  for (const std::string& text : from_stages(common, mine)) {
    for (const std::string& name : split(text, kNameEnd)) all.insert(name);
  }
  return all;
}

}  // namespace capstan::engine
