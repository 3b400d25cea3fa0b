// A sharded model as named tensors of a checkpoint, and back: which elements of each tensor this
// rank writes, and where the elements it needs go when they are read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/piece_writer.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/updater.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

checkpoint::Element element_of(at::ScalarType type);
at::ScalarType scalar_type_of(checkpoint::Element element);
checkpoint::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor);

// The names and shapes that files have for the parameters of a plan.
class StoredNames {
 public:
  StoredNames(const shard::Plan& plan, const ModelExtras& extras);

  bool stored(int param) const { return !specs_[static_cast<std::size_t>(param)].name.empty(); }
  const std::string& name(int param) const { return specs_[static_cast<std::size_t>(param)].name; }
  checkpoint::TensorSpec spec(int param, checkpoint::Element element) const;
  // What of the stored tensor the parameter is: all, or its slice; without rows that are not
  // stored.
  const layout::Box& box(int param) const { return boxes_[static_cast<std::size_t>(param)]; }
  // Adds the tensor to a column, and how it is cut.
  void add(int param, checkpoint::Element element, checkpoint::ColumnSpec& column) const;
  // Of a buffer; empty: not stored.
  std::string buffer_name(const std::string& in_model) const;
  // Every name under which a file may hold the parameter: its own first, then its aliases.
  std::vector<std::string> all_names(int param) const;

 private:
  std::vector<checkpoint::TensorSpec> specs_;  // by parameter
  std::vector<layout::Box> boxes_;             // likewise
  std::map<std::string, std::string> renamed_;
  std::vector<std::vector<std::string>> aliases_;  // by parameter
};

// A tensor in memory that holds some elements of a stored one.
struct HeldElems {
  int param = 0;
  layout::ElemRange in_param;  // of the parameter, flattened
  at::Tensor values;           // 1-D, one for each
};

// The weights that this rank writes: its shard, at every stage. Likewise masters and a state of the
// optimizer, of which stage 0 holds more than its share.
std::vector<HeldElems> weights_to_write(shard::ShardedModel& model);
std::vector<HeldElems> masters_to_write(shard::ShardedModel& model);
std::vector<HeldElems> states_to_write(shard::ShardedModel& model, const StateColumn& column);

// Pieces of `column`, of the stored parameters that `wanted` says; element type as in memory.
std::vector<checkpoint::Piece> pieces_of(const std::string& column,
                                         const std::vector<HeldElems>& held,
                                         const StoredNames& names);
// A whole tensor by one rank, as it is now.
checkpoint::Piece copied_piece(const std::string& column, const NamedTensor& tensor);

// Reads the stored elements of `held` into it, converted to its dtype; elements that no file holds
// stay as they are. `box`: what of the tensor the parameter is.
void read_elems(checkpoint::Reader& reader, const checkpoint::IndexTensor& tensor,
                const layout::Box& box, const HeldElems& held);
at::Tensor read_tensor(checkpoint::Reader& reader, const checkpoint::IndexTensor& tensor);

}  // namespace capstan::engine
