// One unit's parameters on this rank: the shard it owns, and the whole flat buffer while gathered.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/flat_storage.h"
#include "capstan/shard/plan.h"
#include "capstan/store/options.h"
#include "capstan/store/pool.h"

namespace capstan::shard {

//   sharded --start_gather--> gathering --show--> whole --release--> sharded
// A unit that stays whole between its uses is released only where somebody asks for its memory.
enum class UnitState {
  sharded,    // only shard(); the model's parameters are placeholders of shape [0]
  gathering,  // memory is attached to flat() and being filled; still placeholders
  whole,      // the model's parameters are views of flat()
};

struct UnitRole {
  int rank = 0;
  bool keep_whole = false;  // between its uses too; shard() is a part of flat() while it is whole
  int near_rank = 0;        // which part of the second copy is ours, where there is one
};

// Whose memory a unit takes.
struct UnitMemory {
  store::Pool& device;                                    // the whole buffer
  store::Pool& shard;                                     // of the home where the shard lives
  store::Placement placement = store::Placement::device;  // of that home; else never keep_whole
};

// Owns:    the shard, and the whole buffer while it is attached.
// Threads: one caller at a time.
// Ranks:   purely local; gather.h communicates.
class Unit {
 public:
  // `params` are the model's own parameters in slot order: whole, on the device. Their
  // values move into the flat buffer in the unit's dtype, one copy at a time; the unit is then
  // whole.
  Unit(const UnitSpec& spec, std::span<const ParamSpec> all_params, std::vector<at::Tensor> params,
       UnitMemory memory, UnitRole role);

  const UnitSpec& spec() const { return *spec_; }
  UnitState state() const { return state_; }
  bool keeps_whole() const { return role_.keep_whole; }
  // World of one: shard and flat buffer are the same memory, and a gather moves nothing.
  bool gather_is_free() const { return spec_->layout.world_size() == 1 && !shard_on_host(); }
  store::Placement placement() const { return placement_; }  // of the shard
  bool shard_on_host() const { return placement() != store::Placement::device; }

  // 1-D, shard_elems. One object, whatever memory it has.
  const at::Tensor& shard() const { return shard_; }
  at::Tensor own_part() const {
    return storage_.range(spec_->layout.shard(role_.rank));
  }  // of flat()
  const at::Tensor& flat() const { return storage_.flat(); }  // 1-D, padded_elems; not when sharded
  const at::Tensor& param(int slot) const { return params_[static_cast<std::size_t>(slot)]; }
  const at::Tensor& slot(int slot) const { return storage_.slot(slot); }
  // What the parameter holds when it is not whole; there since the first release.
  const at::Tensor& placeholder(int slot) const {
    return placeholders_[static_cast<std::size_t>(slot)];
  }

  void start_gather();  // sharded -> gathering
  void show();          // gathering -> whole
  // Whole or gathering -> sharded. `lent`: views that somebody kept of the parameters stay valid,
  // and with them the memory.
  void release(bool lent = false);

  // The second copy of the parameters, cut among fewer ranks: as large as ours of it, or undefined.
  // Fresh: it holds the values of the shards.
  const at::Tensor& near() const { return near_; }
  bool near_is_fresh() const { return near_is_fresh_; }
  void keep_near();  // whole: takes the copy, where the plan wants one

  // After the values changed: a graph that saved the old ones must not be used again, nor a copy.
  void values_changed();

 private:
  void make_placeholders();
  void part_shard();
  void leave_to_views();

  const UnitSpec* spec_;  // in the plan, which outlives the unit, like the next
  std::span<const ParamSpec> all_params_;
  store::Pool* device_;
  store::Pool* shard_home_;
  store::Placement placement_;  // of the shard
  UnitRole role_;
  UnitState state_ = UnitState::whole;
  FlatStorage storage_;
  at::Tensor shard_;
  at::Tensor near_;
  bool near_is_fresh_ = false;
  std::vector<at::Tensor> params_;        // the model's own
  std::vector<at::Tensor> placeholders_;  // shape [0]; touching their data names the parameter
};

}  // namespace capstan::shard
