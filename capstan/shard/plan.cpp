#include "capstan/shard/plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"

namespace capstan::shard {
namespace {

constexpr int kNoBoundary = -1;  // sorts first: resident units come before all others

// Parameters with equal keys share a flat buffer.
struct UnitKey {
  int boundary = kNoBoundary;
  bool trainable = true;
  DType dtype = DType::fp32;
  std::optional<DType> travel;
  layout::Axes copies;
  std::optional<int> tie;
  auto operator<=>(const UnitKey&) const = default;
};

// For each parameter: the boundary whose unit it joins, or kNoBoundary for resident ones.
std::vector<int> owners(const std::vector<ParamSpec>& params,
                        const std::vector<BoundarySpec>& boundaries, const PlanOptions& options) {
  std::vector<int> owner(params.size(), kNoBoundary);
  for (std::size_t b = 0; b < boundaries.size(); ++b) {
    for (const int index : boundaries[b].params) {
      int& first = owner.at(static_cast<std::size_t>(index));
      if (first == kNoBoundary) first = static_cast<int>(b);
    }
  }
  std::int64_t resident_elems = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const std::int64_t numel = params[i].numel();
    if (owner[i] == kNoBoundary || numel > options.persistence_threshold_elems) continue;
    if (numel > options.persistence_total_elems - resident_elems) continue;
    resident_elems += numel;
    owner[i] = kNoBoundary;
  }
  return owner;
}

std::string unit_name(const UnitKey& key, const std::vector<BoundarySpec>& boundaries) {
  std::string name = key.boundary == kNoBoundary
                         ? "resident"
                         : boundaries[static_cast<std::size_t>(key.boundary)].name;
  if (name.empty()) name = "model";
  if (!key.copies.empty()) name += " (copied)";
  if (key.tie.has_value()) name += " (shared by stages)";
  return key.trainable ? name : name + " (frozen)";
}

UnitSpec make_unit(const UnitKey& key, std::vector<int> members, std::string unit,
                   const std::vector<ParamSpec>& params, const PlanOptions& options) {
  std::vector<std::int64_t> numels;
  numels.reserve(members.size());
  for (const int index : members) {
    numels.push_back(params[static_cast<std::size_t>(index)].numel());
  }
  UnitAxes axes = options.axes;
  axes.copies = key.copies;
  return {.name = std::move(unit),
          .params = std::move(members),
          .dtype = key.dtype,
          .trainable = key.trainable,
          .travel = key.travel,
          .resident = key.boundary == kNoBoundary,
          .tie = key.tie,
          .axes = axes,
          .near_shards = options.near_shards,
          .layout = layout::FlatLayout(numels, options.shards,
                                       options.align_bytes / size_bytes(key.dtype))};
}

}  // namespace

std::int64_t ParamSpec::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Plan::trainable_elems() const {
  std::int64_t total = 0;
  for (const ParamSpec& param : params) total += param.trainable ? param.numel() : 0;
  return total;
}

Plan make_plan(std::vector<ParamSpec> params, const std::vector<BoundarySpec>& boundaries,
               const PlanOptions& options) {
  const std::vector<int> owner = owners(params, boundaries, options);
  std::map<UnitKey, std::vector<int>> members;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& param = params[i];
    const layout::Axes copies = param.slice ? layout::Axes{} : options.axes.copies;
    members[{owner[i], param.trainable, param.dtype, param.travel, copies, param.tie}].push_back(
        static_cast<int>(i));
  }

  Plan plan;
  plan.places.resize(params.size());
  for (auto& [key, indices] : members) {
    const int unit = static_cast<int>(plan.units.size());
    for (std::size_t slot = 0; slot < indices.size(); ++slot) {
      plan.places[static_cast<std::size_t>(indices[slot])] = {unit, static_cast<int>(slot)};
    }
    plan.units.push_back(
        make_unit(key, std::move(indices), unit_name(key, boundaries), params, options));
  }
  plan.boundary_units.reserve(boundaries.size());
  for (const BoundarySpec& boundary : boundaries) {
    std::set<int> needed;
    for (const int index : boundary.params) {
      const int unit = plan.places[static_cast<std::size_t>(index)].unit;
      if (!plan.units[static_cast<std::size_t>(unit)].resident) needed.insert(unit);
    }
    plan.boundary_units.emplace_back(needed.begin(), needed.end());
  }
  plan.params = std::move(params);
  return plan;
}

std::vector<std::vector<std::int64_t>> slot_sizes(const UnitSpec& unit,
                                                  std::span<const ParamSpec> params) {
  std::vector<std::vector<std::int64_t>> sizes;
  sizes.reserve(unit.params.size());
  for (const int index : unit.params)
    sizes.push_back(params[static_cast<std::size_t>(index)].sizes);
  return sizes;
}

namespace {

// FNV-1a over a text: std::hash may differ between builds, and ranks may run different ones.
class TextHash {
 public:
  void mix(std::string_view text) {
    for (const char c : text) {
      value_ = (value_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037ULL;
};

// All of a parameter but its name.
std::string kind_text(const ParamSpec& param) {
  return fmt::format("{} {} {} {}", fmt::join(param.sizes, ","), name(param.dtype), param.trainable,
                     param.travel.has_value() ? name(*param.travel) : "");
}

std::uint64_t fingerprint_if(const Plan& plan, const std::function<bool(const UnitSpec&)>& counts) {
  TextHash hash;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const ParamSpec& param = plan.params[i];
    if (!counts(plan.units[static_cast<std::size_t>(plan.places[i].unit)])) continue;
    hash.mix(fmt::format("{} {};", param.name, kind_text(param)));
  }
  for (const UnitSpec& unit : plan.units) {
    if (!counts(unit)) continue;
    hash.mix(fmt::format("{} {} {} {} {} {} {} {};", unit.tie.value_or(-1), unit.name,
                         fmt::join(unit.params, ","), unit.layout.padded_elems(),
                         to_string(unit.axes.cut), to_string(unit.axes.summed),
                         to_string(unit.axes.copies), unit.near_shards));
  }
  return hash.value();
}

}  // namespace

std::uint64_t fingerprint(const Plan& plan) {
  return fingerprint_if(plan, [](const UnitSpec&) { return true; });
}

std::uint64_t fingerprint(const Plan& plan, layout::Axes axes) {
  return fingerprint_if(plan, [axes](const UnitSpec& unit) { return unit.axes.all() == axes; });
}

std::uint64_t fingerprint_of_tie(const Plan& plan, int tie) {
  TextHash hash;
  for (const ParamSpec& param : plan.params) {
    if (param.tie == tie) hash.mix(kind_text(param) + ";");
  }
  return hash.value();
}

}  // namespace capstan::shard
