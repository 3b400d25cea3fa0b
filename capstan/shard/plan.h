// Which parameters form which units, in which order: a value, equal on all ranks and at every
// stage.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capstan/base/dtype.h"
#include "capstan/layout/box.h"
#include "capstan/layout/flat_layout.h"
#include "capstan/layout/mesh.h"

namespace capstan::shard {

// Weights that several stages of a pipeline share: each has a copy, and their gradients are summed.
struct Tie {
  std::string key;          // for messages
  std::vector<int> stages;  // that have a copy, ascending
  bool operator==(const Tie&) const = default;
};

struct ParamSpec {
  std::string name;  // as in named_parameters()
  std::vector<std::int64_t> sizes;
  DType dtype = DType::fp32;  // the dtype it is trained in
  bool trainable = true;
  std::optional<DType> travel;  // of its gradient on the wire; unset: as ReduceSettings say
  // Which part it is of a tensor that other ranks have the rest of, for checkpoints; its box has
  // these sizes. Unset: it is a whole tensor.
  std::optional<layout::TensorSlice> slice;
  // Of a slice that shares elements with another rank's, which has the same gradients for them:
  // those that count on this rank, in order. Unset: all.
  std::optional<std::vector<layout::ElemRange>> counted;
  std::optional<int> tie;  // of the plan's ties

  std::int64_t numel() const;
  bool operator==(const ParamSpec&) const = default;
};

// A module whose parameters are used together, and which tells us before and after each use.
struct BoundarySpec {
  std::string name;  // as in named_modules()
  std::vector<int>
      params;  // indices of all parameters it uses, those of boundaries inside left out
};

// Which ranks of the mesh share a unit, and what of it.
struct UnitAxes {
  layout::Axes cut = {layout::Axis::shard, layout::Axis::sequence};  // each has a part of its own
  layout::Axes summed = layout::Axis::replica;  // have the same part, and sum its gradients
  // Have a second copy of the parameters, cut between them, which serves gathers until the values
  // change. Empty: there is none.
  layout::Axes near = {};
  // Have a copy each, with gradients that are equal without a sum; one of them counts.
  layout::Axes copies = {};

  layout::Axes all() const { return cut | summed; }
  bool operator==(const UnitAxes&) const = default;
};

// One flat buffer: parameters that agree in dtype, in travel, in being trainable, and in being
// copies on some axes.
struct UnitSpec {
  std::string name;
  std::vector<int> params;  // indices, in slot order
  DType dtype = DType::fp32;
  bool trainable = true;
  std::optional<DType> travel;
  bool resident = false;   // whole at all times, also at stage 3
  std::optional<int> tie;  // of the plan's; all its parameters have the same
  UnitAxes axes;
  int near_shards = 0;        // parts of the second copy; 0: there is none
  layout::FlatLayout layout;  // cut over axes.cut

  std::int64_t whole_bytes() const { return layout.padded_elems() * size_bytes(dtype); }
};

struct ParamPlace {
  int unit = 0;
  int slot = 0;
};

struct Plan {
  std::vector<ParamSpec> params;
  std::vector<UnitSpec> units;                   // resident first, then in the order of boundaries
  std::vector<ParamPlace> places;                // of each parameter
  std::vector<std::vector<int>> boundary_units;  // for each boundary: the units it needs whole
  std::vector<Tie> ties;                         // of all stages, in one order on all of them

  std::int64_t trainable_elems() const;
};

struct PlanOptions {
  int shards = 1;  // ranks on axes.cut
  // `copies` are those of whole parameters; what is a slice is no copy of another rank's.
  UnitAxes axes;
  int near_shards = 0;            // ranks on axes.near, or 0
  std::int64_t align_bytes = 64;  // of every slot; GEMM kernels are chosen by alignment
  std::int64_t persistence_threshold_elems = 100'000;
  std::int64_t persistence_total_elems = 0;
};

// Parameters up to the threshold, and those that no boundary uses, become resident; the others form
// the unit of the first boundary that lists them. A parameter in several boundaries (tied weights)
// is gathered for each of them.
Plan make_plan(std::vector<ParamSpec> params, const std::vector<BoundarySpec>& boundaries,
               const PlanOptions& options);

// The shapes of a unit's slots.
std::vector<std::vector<std::int64_t>> slot_sizes(const UnitSpec& unit,
                                                  std::span<const ParamSpec> params);

// Equal on two ranks exactly when their plans are, for all practical purposes; the second one, when
// what those axes share is.
std::uint64_t fingerprint(const Plan& plan);
std::uint64_t fingerprint(const Plan& plan, layout::Axes axes);
// Likewise, when two stages' copies of what they share are alike, whatever their names.
std::uint64_t fingerprint_of_tie(const Plan& plan, int tie);

}  // namespace capstan::shard
