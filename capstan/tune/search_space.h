// What can be tried: the settings that a configuration may take, and the one configuration that a
// choice among them makes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/json/value.h"

namespace capstan::tune {

// A value in the configuration, at a dotted path.
using Edit = std::pair<std::string, json::Value>;

struct Setting {
  std::string label;        // for people: "stage 2"
  std::string tag;          // for names of files: "z2"
  std::vector<Edit> edits;  // none: the configuration as it is
  int memory = 0;           // within its axis: a higher one needs more; comparable only if ordered
  int least_stage = 0;      // below this stage it makes no sense
};

// How far the search goes for an axis.
enum class Reach {
  always,
  when_needed,  // only where nothing else fits, unless all is wanted
};

struct Axis {
  std::string name;
  std::vector<Setting> settings;  // the first one is the configuration's own
  bool ordered = false;           // by memory
  Reach reach = Reach::always;
};

// One setting of each axis, by index.
using Choice = std::vector<int>;

// A size of the micro-batch and the accumulation steps that go with it.
struct MicroBatch {
  std::int64_t samples = 1;
  std::int64_t accumulation_steps = 1;
  bool operator==(const MicroBatch&) const = default;
};

struct Combination {
  Choice choice;
  int micro = 0;  // index
  bool operator==(const Combination&) const = default;
  auto operator<=>(const Combination&) const = default;
};

struct Space {
  std::vector<Axis> axes;          // the first one chooses the stage
  std::vector<MicroBatch> micros;  // from small to large
  std::vector<int> stages;         // by setting of the first axis
  std::int64_t data_ranks = 1;     // ranks that see different samples
  int first_micro = 0;             // where the search starts: the configuration's own size

  int stage_of(const Choice& choice) const {
    return stages[static_cast<std::size_t>(choice.front())];
  }
  // False for a setting that has no effect, or is not allowed, beside the others.
  bool makes_sense(const Choice& choice) const;
  // All that make sense, in the order of a grid: later axes change faster.
  std::vector<Choice> choices(bool all) const;
  // Whether `a` needs at least as much memory as `b`, for certain.
  bool needs_as_much(const Combination& a, const Combination& b) const;
  std::int64_t batch_of(const Combination& candidate) const;  // samples per step over all ranks
};

// "stage 2, micro-batch 8 x 1".
std::string describe(const Space& space, const Combination& candidate);
// "z2_gas1_tmbspg8": a name for files.
std::string tag(const Space& space, const Combination& candidate);

// `config` as this candidate has it.
json::Value apply(const Space& space, const Combination& candidate, json::Value config);

// The value at a dotted path, made with all that is above it.
void set_at(json::Value& root, const std::string& path, json::Value value);
const json::Value* find_at(const json::Value& root, const std::string& path);

}  // namespace capstan::tune
