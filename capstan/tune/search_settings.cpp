#include "capstan/tune/search_settings.h"

#include <algorithm>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::tune {
namespace {

constexpr const char* kZero = "zero_optimization.";
// Sizes closer together than this measure nearly the same.
constexpr double kLeastRatio = 1.5;

// Whether the user has written a value, and not left it to us.
bool written(const config::Table& table, const std::string& path) {
  const config::Entry* const entry = table.find(path);
  return entry != nullptr && entry->origin.kind == config::OriginKind::file;
}

Axis stage_axis(const Alternatives& alternatives, const config::Table& table, int ranks) {
  std::vector<int> stages = alternatives.stages;
  const int own = static_cast<int>(table.integer(std::string(kZero) + "stage"));
  Axis axis{.name = "stage", .ordered = true};
  if (stages.empty()) {
    stages = {own};
    // Alone on a model, a rank has nothing to share.
    for (int stage = 0; stage <= 3 && ranks > 1; ++stage) {
      if (stage != own) stages.push_back(stage);
    }
    if (written(table, std::string(kZero) + "stage")) axis.reach = Reach::when_needed;
  }
  for (const int stage : stages) {
    axis.settings.push_back({.label = fmt::format("stage {}", stage),
                             .edits = {{std::string(kZero) + "stage", json::Value(stage)}},
                             .memory = 3 - stage});
  }
  return axis;
}

// Optimizer and parameters from the device towards the disk.
struct Places {
  const char* label;
  const char* optimizer;
  const char* params;
  int least_stage;
};
constexpr Places kPlaces[] = {
    {"all on the device", "none", "none", 0},
    {"optimizer on the host", "cpu", "none", 1},
    {"optimizer and parameters on the host", "cpu", "cpu", 3},
    {"optimizer on nvme", "nvme", "none", 1},
    {"optimizer and parameters on nvme", "nvme", "nvme", 3},
};

std::optional<Axis> placement_axis(const config::Table& table, bool on_gpus) {
  const std::string optimizer = std::string(kZero) + "offload_optimizer";
  const std::string params = std::string(kZero) + "offload_param";
  const auto old_flag = [&](const char* name) { return table.flag(std::string(kZero) + name); };
  if (old_flag("cpu_offload") || old_flag("cpu_offload_param")) return std::nullopt;
  Axis axis{.name = "placement", .ordered = true, .reach = Reach::when_needed};
  const auto own = [&](const Places& places) {
    return table.text(optimizer + ".device") == places.optimizer &&
           table.text(params + ".device") == places.params;
  };
  const auto possible = [&](const Places& places) {
    const auto disk = [&](const char* device, const std::string& section) {
      return std::string_view(device) != "nvme" || !table.text(section + ".nvme_path").empty();
    };
    // Where ranks compute on the CPU, the host is the device.
    const bool host = std::string_view(places.optimizer) == "cpu";
    return (on_gpus || !host) && disk(places.optimizer, optimizer) && disk(places.params, params);
  };
  int memory = std::ssize(kPlaces);
  for (const Places& places : kPlaces) {
    --memory;
    if (!own(places) && !possible(places)) continue;
    Setting setting{.label = places.label,
                    .tag = fmt::format("o{}p{}", places.optimizer, places.params),
                    .edits = {{optimizer + ".device", json::Value(places.optimizer)},
                              {params + ".device", json::Value(places.params)}},
                    .memory = memory,
                    .least_stage = places.least_stage};
    if (own(places)) {
      setting.edits.clear();
      setting.tag.clear();
      setting.least_stage = 0;
      axis.settings.insert(axis.settings.begin(), std::move(setting));
    } else {
      axis.settings.push_back(std::move(setting));
    }
  }
  const bool has_own = !axis.settings.empty() && axis.settings.front().edits.empty();
  return has_own && axis.settings.size() > 1 ? std::optional(std::move(axis)) : std::nullopt;
}

std::optional<Axis> recompute_axis(const config::Table& table) {
  if (!table.is_null("activation_checkpointing.number_checkpoints")) return std::nullopt;
  const bool own = table.flag("capstan.recompute");
  const auto setting = [&](bool on) {
    Setting made{.label = on ? "recomputation" : "no recomputation", .memory = on ? 0 : 1};
    if (on == own) return made;
    made.tag = on ? "recompute" : "keep";
    made.edits = {{"capstan.recompute", json::Value(on)}};
    return made;
  };
  return Axis{.name = "recomputation",
              .settings = {setting(own), setting(!own)},
              .ordered = true,
              .reach = Reach::when_needed};
}

// A number of elements that only stage 3 looks at; more takes more memory.
std::optional<Axis> stage3_axis(const config::Table& table, const json::Value& config,
                                const std::string& key, std::vector<std::int64_t> others) {
  const std::string path = kZero + key;
  // Under another spelling it would stand there twice.
  if (written(table, path) && find_at(config, path) == nullptr) return std::nullopt;
  const std::int64_t own = table.integer(path);
  Axis axis{.name = key, .ordered = true, .reach = Reach::when_needed};
  axis.settings.push_back({.label = fmt::format("{} {}", key, own), .memory = 1});
  for (const std::int64_t other : others) {
    if (other == own) continue;
    axis.settings.push_back({.label = fmt::format("{} {}", key, other),
                             .tag = fmt::format("{}{}", key, other),
                             .edits = {{path, json::Value(other)}},
                             .memory = other < own ? 0 : 2,
                             .least_stage = 3});
  }
  return axis;
}

std::int64_t own_prefetch(const config::Table& table) {
  return table.integer(std::string(kZero) + "stage3_prefetch_bucket_size");
}

// Micro-batches

class Micros {
 public:
  Micros(const Alternatives& alternatives, const config::Resolved& resolved, std::int64_t ranks)
      : alternatives_(alternatives), table_(resolved.table), tune_(resolved.tune), ranks_(ranks) {}

  void put_into(Space& space) const {
    const std::int64_t own = table_.integer(kMicro);
    for (const std::int64_t samples : sizes(own)) {
      if (const auto steps = accumulation(samples)) space.micros.push_back({samples, *steps});
    }
    if (space.micros.empty()) fail();
    const bool told = written(table_, kMicro) && alternatives_.micros.empty();
    for (std::size_t i = 0; told && i < space.micros.size(); ++i) {
      if (space.micros[i].samples <= own) space.first_micro = static_cast<int>(i);
    }
  }

 private:
  static constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  static constexpr const char* kTrain = "train_batch_size";

  bool batch_is_fixed() const { return !tune_.max_batch && written(table_, kTrain); }

  std::vector<std::int64_t> sizes(std::int64_t own) const {
    std::vector<std::int64_t> found = alternatives_.micros;
    if (found.empty() && batch_is_fixed()) {
      divisors(own, found);
    } else if (found.empty()) {
      const bool given = written(table_, kMicro);
      for (std::int64_t size = given ? own : tune_.min_micro; size <= tune_.max_micro; size *= 2) {
        found.push_back(size);
      }
      for (std::int64_t size = own / 2; given && size >= 1; size /= 2) found.push_back(size);
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    std::erase_if(
        found, [&](std::int64_t size) { return size < tune_.min_micro || size > tune_.max_micro; });
    return found;
  }

  // Sizes that divide the batch evenly, each clearly larger than the one before.
  void divisors(std::int64_t own, std::vector<std::int64_t>& found) const {
    const std::int64_t each = table_.integer(kTrain) / ranks_;
    for (std::int64_t size = 1; size <= std::min(each, tune_.max_micro); ++size) {
      if (each % size != 0) continue;
      const bool close = !found.empty() && static_cast<double>(size) <
                                               kLeastRatio * static_cast<double>(found.back());
      if (!close || size == own) found.push_back(size);
    }
  }

  std::optional<std::int64_t> accumulation(std::int64_t samples) const {
    std::int64_t steps = table_.integer("gradient_accumulation_steps");
    if (tune_.max_batch) {
      steps = *tune_.max_batch / (samples * ranks_);
    } else if (batch_is_fixed()) {
      const std::int64_t batch = table_.integer(kTrain);
      if (batch % (samples * ranks_) != 0) return std::nullopt;
      steps = batch / (samples * ranks_);
    }
    const std::int64_t batch = samples * steps * ranks_;
    return steps >= 1 && batch >= tune_.min_batch ? std::optional(steps) : std::nullopt;
  }

  [[noreturn]] void fail() const {
    throw ConfigError(
        {.what = fmt::format("no micro-batch size is possible on {}",
                             counted(ranks_, "data-parallel rank")),
         .where = batch_is_fixed() ? fmt::format("train_batch_size {}", table_.integer(kTrain))
                                   : "autotuning",
         .fix = "give other limits (min_train_batch_size, max_train_batch_size, "
                "min_train_micro_batch_size_per_gpu, max_train_micro_batch_size_per_gpu), or "
                "another train_batch_size"});
  }

  const Alternatives& alternatives_;
  const config::Table& table_;
  const Options& tune_;
  const std::int64_t ranks_;
};

}  // namespace

Space make_space(const Alternatives& alternatives, const config::Resolved& resolved,
                 const SpaceFacts& facts) {
  const config::Table& table = resolved.table;
  const json::Value& config = alternatives.config.root;
  Space space{.data_ranks = resolved.world_size};
  space.axes.push_back(stage_axis(alternatives, table, facts.ranks));
  for (const Setting& setting : space.axes.front().settings) {
    space.stages.push_back(3 - setting.memory);
  }
  const auto add = [&](std::optional<Axis> axis) {
    if (axis) space.axes.push_back(*std::move(axis));
  };
  for (const Axis& axis : alternatives.others) space.axes.push_back(axis);
  if (facts.own_models) add(recompute_axis(table));
  add(placement_axis(table, facts.on_gpus));
  if (facts.ranks > 1) {
    const std::int64_t own = own_prefetch(table);
    add(stage3_axis(table, config, "stage3_prefetch_bucket_size",
                    {0, own == 0 ? 50'000'000 : 4 * own}));
    add(stage3_axis(table, config, "stage3_max_reuse_distance", {0}));
  }
  Micros(alternatives, resolved, space.data_ranks).put_into(space);
  return space;
}

}  // namespace capstan::tune
