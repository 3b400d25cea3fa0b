// What an engine holds, by parameter, in the values that users know: gradients averaged and
// unscaled, writes that no save in the background sees half of.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/engine/common.h"
#include "capstan/engine/saver.h"
#include "capstan/shard/access.h"

namespace capstan::engine {

// Owns:    nothing.
// Threads: one caller at a time.
// Ranks:   as the functions of shard/access.h that it calls.
class Access {
 public:
  // All must outlive this.
  Access(const Common& common, Saver& saver) : common_(common), saver_(saver) {}

  // The index of a parameter. Throws ConfigError with the nearest name when there is none.
  int find(std::string_view name) const;
  // A state of the optimizer, e.g. "exp_avg". Throws ConfigError for one that it does not have.
  shard::ColumnName state(std::string_view name) const;

  at::Tensor param(int param);  // in its training dtype
  at::Tensor read(int param, shard::ColumnName column);
  void set_param(int param, const at::Tensor& value);
  void write(int param, shard::ColumnName column, const at::Tensor& value);
  // While the parameter is whole: what `root` has in it becomes everybody's.
  void take_from(int param, int root);

  // This rank's part, as 1-D tensors: the elements that it updates.
  at::Tensor read_local(int param, shard::ColumnName column);
  void write_local(int param, shard::ColumnName column, const at::Tensor& value);

  // Of the gradients of each set of parameters, whatever ranks hold them. Collective.
  std::vector<double> gradient_norms(const std::vector<std::vector<int>>& sets);

 private:
  Common common_;
  Saver& saver_;
};

}  // namespace capstan::engine
