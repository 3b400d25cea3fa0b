#include "capstan/engine/load_plan.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/folder.h"

namespace capstan::engine {

using checkpoint::IndexTensor;
using checkpoint::Reader;

const IndexTensor* find_stored(const Reader& reader, const std::string& column,
                               const StoredNames& names, int param) {
  for (const std::string& each : names.all_names(param)) {
    if (const IndexTensor* const found = reader.find(column, each)) return found;
  }
  return nullptr;
}

namespace {

// A few are listed. Of many of one kind, a model of another size, the first stands for all.
std::string told(const std::vector<LoadMisfit>& problems) {
  constexpr std::int64_t kListed = 8;
  using Kind = LoadMisfit::Kind;
  const std::array<std::pair<Kind, const char*>, 5> kinds = {
      {{Kind::missing, "are missing from the checkpoint"},
       {Kind::shape, "have another shape"},
       {Kind::type, "hold numbers of another kind"},
       {Kind::extra, "are in the checkpoint but not in the model"},
       {Kind::state, "states of the optimizer are missing or of another shape"}}};
  std::string text;
  for (const auto& [kind, what] : kinds) {
    const auto of_kind = [kind = kind](const LoadMisfit& each) { return each.kind == kind; };
    const std::int64_t count = std::ranges::count_if(problems, of_kind);
    const auto first = std::ranges::find_if(problems, of_kind);
    if (count > kListed) {
      text += fmt::format("\n    {} {}, the first: {}", count, what, first->text);
      continue;
    }
    for (const LoadMisfit& each : problems) {
      if (of_kind(each)) text += "\n    " + each.text;
    }
  }
  return text;
}

void plan_weights(const Common& common, LoadPlan& plan, const Reader& reader,
                  const NamesToLoad& to_load) {
  const StoredNames& names = to_load.ours;
  std::set<const IndexTensor*> used;
  const auto take = [&](const IndexTensor* stored, const std::string& name,
                        const std::vector<std::int64_t>& shape,
                        bool floating) -> const IndexTensor* {
    if (stored == nullptr) {
      plan.misfits.push_back(
          {LoadMisfit::Kind::missing, fmt::format("'{}' is missing from the checkpoint", name)});
      return nullptr;
    }
    used.insert(stored);
    if (checkpoint::is_floating(stored->spec.element) != floating) {
      plan.misfits.push_back(
          {LoadMisfit::Kind::type, fmt::format("'{}' holds {} in the checkpoint, {} in the model",
                                               name, checkpoint::name(stored->spec.element),
                                               floating ? "floating-point numbers" : "integers")});
      return nullptr;
    }
    if (stored->spec.shape == shape) return stored;
    plan.misfits.push_back(
        {LoadMisfit::Kind::shape,
         fmt::format("'{}' has shape [{}] in the checkpoint, [{}] in the model", name,
                     fmt::join(stored->spec.shape, ", "), fmt::join(shape, ", "))});
    return nullptr;
  };
  const int params = static_cast<int>(common.sharded.plan().params.size());
  for (int p = 0; p < params; ++p) {
    const IndexTensor* stored = nullptr;
    if (names.stored(p)) {
      stored = take(find_stored(reader, checkpoint::kModelColumn, names, p), names.name(p),
                    names.spec(p, {}).shape, /*floating=*/true);
    }
    plan.weights.push_back(stored);
    const bool has_master = stored != nullptr && plan.has_masters;
    plan.masters.push_back(has_master ? find_stored(reader, checkpoint::kMasterColumn, names, p)
                                      : nullptr);
  }
  for (const NamedTensor& buffer : common.extras.buffers) {
    const std::string name = names.buffer_name(buffer.name);
    if (name.empty()) continue;
    const IndexTensor* const stored =
        take(reader.find(checkpoint::kModelColumn, name), name, buffer.tensor.sizes().vec(),
             buffer.tensor.is_floating_point());
    if (stored != nullptr) plan.buffers.emplace_back(stored, buffer.tensor);
  }
  const checkpoint::Column* const column = reader.index().find(checkpoint::kModelColumn);
  if (column == nullptr) return;
  for (const IndexTensor& tensor : column->tensors) {
    const bool alias = common.extras.aliases.contains(tensor.spec.name);
    if (used.contains(&tensor) || alias || to_load.of_stages.contains(tensor.spec.name)) continue;
    plan.misfits.push_back(
        {LoadMisfit::Kind::extra,
         fmt::format("'{}' is in the checkpoint but not in the model", tensor.spec.name)});
  }
}

void plan_optimizer(const Common& common, LoadPlan& plan, const Reader& reader,
                    const StoredNames& names) {
  const checkpoint::TrainingState& saved = reader.index().state;
  if (saved.optimizer.empty()) {
    common.log.say(LogLevel::warning,
                   "the checkpoint has no optimizer state: the optimizer starts from scratch");
    return;
  }
  std::vector<std::string> wanted = common.sharded.settings().states.moment_names;
  if (!common.options.optimizer.has_value()) wanted = saved.optimizer_states;
  for (const std::string& state : wanted) {
    const std::string column = checkpoint::kOptimizerPrefix + state;
    if (reader.index().find(column) == nullptr) {
      plan.unloadable.push_back(
          {LoadMisfit::Kind::missing,
           fmt::format("the optimizer's state '{}' is missing; saved were: {}", state,
                       fmt::join(saved.optimizer_states, ", "))});
      continue;
    }
    for (int p = 0; p < static_cast<int>(common.sharded.plan().params.size()); ++p) {
      if (!common.sharded.plan().params[static_cast<std::size_t>(p)].trainable ||
          !names.stored(p)) {
        continue;
      }
      const IndexTensor* const stored = find_stored(reader, column, names, p);
      if (stored != nullptr && stored->spec.shape == names.spec(p, {}).shape) continue;
      plan.unloadable.push_back({LoadMisfit::Kind::state,
                                 fmt::format("'{}' of '{}' is {}", state, names.name(p),
                                             stored == nullptr ? "missing" : "of another shape"),
                                 p});
    }
  }
  plan.optimizer = plan.unloadable.empty();
}

}  // namespace

LoadPlan load_plan(const Common& common, const Reader& reader, const LoadOptions& how,
                   const NamesToLoad& names) {
  LoadPlan plan;
  if (how.load_module_only) {
    plan.has_masters = checkpoint::look_at(reader.folder()).problem.empty();
  }
  plan_weights(common, plan, reader, names);
  if (how.load_optimizer_states && !how.load_module_only)
    plan_optimizer(common, plan, reader, names.ours);
  std::vector<LoadMisfit> problems = plan.unloadable;
  if (how.load_module_strict) {
    // States of a weight that does not fit do not either: the weight is told, they follow.
    std::erase_if(problems, [&](const LoadMisfit& each) {
      return each.param >= 0 && plan.weights[static_cast<std::size_t>(each.param)] == nullptr;
    });
    problems.insert(problems.begin(), plan.misfits.begin(), plan.misfits.end());
  }
  if (problems.empty() && (plan.optimizer || plan.unloadable.empty())) return plan;
  throw ConfigError(
      {.what = "the checkpoint does not fit the model and its optimizer:" + told(problems),
       .where = reader.folder().string(),
       .fix = "build the model as it was saved (`capstan checkpoint inspect --tensors` lists what "
              "it has); load_module_strict=false skips weights that do not fit, "
              "load_optimizer_states=false starts the optimizer from scratch"});
}

}  // namespace capstan::engine
