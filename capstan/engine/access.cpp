#include "capstan/engine/access.h"

#include <cmath>

#include <ATen/ops/zeros.h>

#include "capstan/engine/settings.h"

namespace capstan::engine {

using shard::Column;

int Access::find(std::string_view name) const {
  return shard::find_param(common_.sharded.plan(), name);
}

shard::ColumnName Access::state(std::string_view name) const {
  return {Column::moment, moment_index(common_.sharded.settings().states, name)};
}

at::Tensor Access::param(int param) { return shard::read_param(common_.sharded, param); }

at::Tensor Access::read(int param, shard::ColumnName column) {
  at::Tensor whole = shard::read_whole(common_.sharded, param, column);
  if (column.column != Column::gradient || !whole.defined()) return whole;
  return whole.to(at::kFloat).mul_(common_.scale.gradient_factor());
}

void Access::set_param(int param, const at::Tensor& value) {
  saver_.before_change();
  shard::write_param(common_.sharded, param, value);
}

void Access::write(int param, shard::ColumnName column, const at::Tensor& value) {
  if (column.column == Column::gradient) {
    const at::Tensor sum = value.to(at::kFloat) / common_.scale.gradient_factor();
    return shard::write_whole(common_.sharded, param, column, sum);
  }
  saver_.before_change();
  shard::write_whole(common_.sharded, param, column, value);
}

void Access::take_from(int param, int root) {
  saver_.before_change();
  shard::take_from(common_.sharded, param, root);
}

at::Tensor Access::read_local(int param, shard::ColumnName column) {
  const at::Tensor part = shard::local_part(common_.sharded, param, column);
  if (column.column != Column::gradient) return part;
  return part.to(at::kFloat).mul(common_.scale.gradient_factor());
}

std::vector<double> Access::gradient_norms(const std::vector<std::vector<int>>& sets) {
  std::vector<double> norms;
  if (sets.empty()) return norms;
  shard::ShardedModel& model = common_.sharded;
  at::Tensor squares = at::zeros({std::ssize(sets)}, at::kDouble);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const int param : sets[i]) {
      squares[static_cast<std::int64_t>(i)] += shard::own_squares(model, param);
    }
  }
  squares = squares.to(model.device());
  model.group().all_reduce(squares, "gradient norms").wait();
  squares = squares.cpu();
  for (std::size_t i = 0; i < sets.size(); ++i) {
    norms.push_back(std::sqrt(squares.const_data_ptr<double>()[i]) *
                    common_.scale.gradient_factor());
  }
  return norms;
}

void Access::write_local(int param, shard::ColumnName column, const at::Tensor& value) {
  if (column.column == Column::gradient) {
    const at::Tensor sum = value.to(at::kFloat) / common_.scale.gradient_factor();
    return shard::write_local(common_.sharded, param, column, sum);
  }
  saver_.before_change();
  shard::write_local(common_.sharded, param, column, value);
}

}  // namespace capstan::engine
