// What the modules of a model cost in one pass, as a tree, and as text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::profile {

// Recomputed: in backward, of forwards whose activations were not kept.
enum class PassPart : std::uint8_t { forward, backward, recomputed };
inline constexpr std::size_t kPassParts = 3;

// Floating-point operations, or seconds; with all that is inside a module.
using PerPart = std::array<double, kPassParts>;

struct ModuleCost {
  int depth = 0;  // in the tree, whose nodes come parents first; 0: the model
  std::string name;
  std::string kind;  // its class
  std::int64_t parameters = 0;
  PerPart flops{};
  PerPart seconds{};  // 0: not measured
};

struct CostsShown {
  int depth = -1;        // of the tree; -1: all
  int top_modules = 1;   // classes listed per depth
  bool detailed = true;  // a line per module
};

// Of the run, where they are known.
struct CostFacts {
  std::int64_t step = 0;
  int world_size = 1;
  int data_ranks = 1;
  int model_ranks = 1;
  std::int64_t micro_batch = 0;    // samples
  std::int64_t micro_batches = 1;  // of a rank in a step; the figures are of one
  // Of the whole step, seconds; with what lies between modules.
  std::optional<double> forward_s;
  std::optional<double> backward_s;
  std::optional<double> update_s;
  std::optional<double> step_s;
  // Share of forward that is added to backward where no recomputation was seen.
  double recompute_factor = 0;
};

// A line per module.
std::string module_table(const std::vector<ModuleCost>& modules, int depth = -1);

// The classes of modules with the most parameters, operations and time at each depth.
std::string top_modules(const std::vector<ModuleCost>& modules, const CostsShown& shown);

// All of it. `modules` is not empty.
std::string costs_report(const std::vector<ModuleCost>& modules, const CostFacts& facts,
                         const CostsShown& shown);

// "1.5 GMACs", "12 MACs": a figure with four digits and the letter of its thousands.
std::string with_prefix(double value, std::string_view unit = {});

}  // namespace capstan::profile
