// Whole tensors of a sharded model by parameter: read and written on every rank, at any stage.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "capstan/shard/sharded_model.h"

namespace capstan::shard {

enum class Column { master, gradient, moment };

struct ColumnName {
  Column column = Column::master;
  int moment = 0;  // which one, for Column::moment
};

// The index of a parameter. Throws ConfigError with the nearest name when there is none.
int find_param(const Plan& plan, std::string_view name);

// Collective; every rank gets the same tensor, of the parameter's shape: the master copy, the
// summed gradient (reduces what is not reduced yet), or one of the optimizer's moments. An
// undefined tensor where the parameter is frozen and has none.
at::Tensor read_whole(ShardedModel& model, int param, ColumnName column);
// The parameter in the dtype it is trained in, frozen or not. Collective.
at::Tensor read_param(ShardedModel& model, int param);

// Collective; every rank gives the same value, of the parameter's shape. A master also sets the
// parameter itself. A gradient replaces the sum that the next step uses.
void write_whole(ShardedModel& model, int param, ColumnName column, const at::Tensor& value);
void write_param(ShardedModel& model, int param, const at::Tensor& value);

// Collective, while the parameter is whole: what `root` has in it becomes everybody's.
void take_from(ShardedModel& model, int param, int root);

// The elements of a flat parameter that this rank updates; none where it is frozen.
layout::ElemRange owned_range(const ShardedModel& model, int param);
// Those elements of a column, 1-D. A view, found locally; but a gradient that is not reduced yet is
// reduced, and where every rank updates everything its sum, which is kept in shards, is gathered.
at::Tensor local_part(ShardedModel& model, int param, ColumnName column);
// Replaces those elements; a master also sets the parameter. Collective where the unit is whole.
void write_local(ShardedModel& model, int param, ColumnName column, const at::Tensor& value);
// Of this rank's part of the gradient: added up over all ranks they are those of the whole, which
// no replica counts twice. Reduces what is not reduced yet.
double own_squares(ShardedModel& model, int param);
// Trained parameters that somebody gave other tensors instead of writing into them: the values
// become ours. Throws ConfigError for tensors of another kind.
void take_given(ShardedModel& model);
// The elements of the parameter itself that lie in this rank's shard, frozen or not; a 1-D view. A
// parameter that is alone in its unit has the whole shard, which is as long on every rank.
at::Tensor local_param(ShardedModel& model, int param);
// Collective: the whole tensor of which every rank gives its owned_range().
at::Tensor assemble(ShardedModel& model, int param, const at::Tensor& mine);

}  // namespace capstan::shard
