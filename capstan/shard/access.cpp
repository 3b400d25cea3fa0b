#include "capstan/shard/access.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::shard {
namespace {

const UnitSpec& unit_spec(const ShardedModel& model, int param) {
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  return model.plan().units[static_cast<std::size_t>(place.unit)];
}

// The column's tensor over the elements this rank owns; for gradients: over its shard.
at::Tensor own_part(ShardedModel& model, int unit, ColumnName column) {
  model.settle_updates();
  switch (column.column) {
    case Column::gradient:
      model.finish_gradients();
      return model.gradients().shard(unit);
    case Column::moment:
      return model.states(unit).moments.at(static_cast<std::size_t>(column.moment));
    case Column::master:
      break;
  }
  return model.states(unit).master;
}

at::Tensor slot_of(const at::Tensor& flat, const UnitSpec& spec, int slot,
                   const std::vector<std::int64_t>& sizes) {
  const layout::ElemRange range = spec.layout.slots()[static_cast<std::size_t>(slot)];
  return flat.narrow(0, range.begin, range.size()).view(sizes).clone();
}

void check_shape(const ParamSpec& param, const at::Tensor& value) {
  if (value.defined() && value.sizes() == at::IntArrayRef(param.sizes)) return;
  throw ConfigError(
      {.what =
           fmt::format("a value of shape [{}] does not fit a parameter of shape [{}]",
                       value.defined() ? fmt::format("{}", fmt::join(value.sizes(), ", ")) : "none",
                       fmt::join(param.sizes, ", ")),
       .where = param.name,
       .fix = "give the value of the whole parameter, on every rank"});
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

void check_given(const ParamSpec& param, const at::Tensor& given, const at::Tensor& slot) {
  const bool same = given.scalar_type() == slot.scalar_type() && given.sizes() == slot.sizes() &&
                    given.device() == slot.device();
  if (same) return;
  throw ConfigError({.what = fmt::format("a parameter is now {}, but the engine trains it as {}",
                                         describe(given), describe(slot)),
                     .where = param.name,
                     .fix = "convert or move the model (to(), half(), ...) before you create the "
                            "engine, and set the dtype in the configuration"});
}

// Where every rank updates everything, its part of a gradient is all of it, although the sums are
// kept in shards.
bool is_all_of_it(const ShardedModel& model, ColumnName column) {
  return column.column == Column::gradient && !model.settings().policy.shards_optimizer();
}

// Copies the part of `value` that lies in `range` of the flat buffer to its place in `part`.
void write_part(const at::Tensor& part, layout::ElemRange range, layout::ElemRange slot,
                const at::Tensor& value) {
  const layout::ElemRange both = layout::intersect(range, slot);
  if (both.size() == 0) return;
  part.narrow(0, both.begin - range.begin, both.size())
      .copy_(value.reshape({-1}).narrow(0, both.begin - slot.begin, both.size()));
}

}  // namespace

int find_param(const Plan& plan, std::string_view name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    if (plan.params[i].name == name) return static_cast<int>(i);
    names.push_back(plan.params[i].name);
  }
  const std::string nearest = nearest_name(name, names);
  throw ConfigError({.what = fmt::format("there is no parameter '{}'", name),
                     .where = fmt::format("a model of {}", counted(std::ssize(names), "parameter")),
                     .fix = nearest.empty() ? "use a name from named_parameters()"
                                            : fmt::format("did you mean '{}'?", nearest)});
}

at::Tensor read_whole(ShardedModel& model, int param, ColumnName column) {
  const at::NoGradGuard no_grad;
  const ParamSpec& spec = model.plan().params[static_cast<std::size_t>(param)];
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  if (!spec.trainable) return {};
  const UnitSpec& unit = unit_spec(model, param);
  // Groups take tensors of the device; what lives on the host travels through it.
  const at::Tensor part = own_part(model, place.unit, column).to(model.device());
  if (part.numel() == unit.layout.padded_elems())
    return slot_of(part, unit, place.slot, spec.sizes);
  const at::Tensor whole = at::empty({unit.layout.padded_elems()}, part.options());
  model.groups(place.unit).cut->all_gather(whole, part, unit.name).wait();
  return slot_of(whole, unit, place.slot, spec.sizes);
}

at::Tensor read_param(ShardedModel& model, int param) {
  const at::NoGradGuard no_grad;
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  model.pin(place.unit);
  at::Tensor value = model.unit(place.unit).slot(place.slot).clone();
  model.unpin(place.unit);
  return value;
}

void write_whole(ShardedModel& model, int param, ColumnName column, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const ParamSpec& spec = model.plan().params[static_cast<std::size_t>(param)];
  check_shape(spec, value);
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const UnitSpec& unit = unit_spec(model, param);
  if (!spec.trainable) {
    throw ConfigError({.what = "a frozen parameter has no optimizer state or gradient",
                       .where = spec.name,
                       .fix = "set the parameter itself"});
  }
  const layout::ElemRange slot = unit.layout.slots()[static_cast<std::size_t>(place.slot)];
  const layout::ElemRange range = column.column == Column::gradient
                                      ? unit.layout.shard(model.groups(place.unit).cut->rank())
                                      : model.states(place.unit).owned.range;
  write_part(own_part(model, place.unit, column), range, slot, value);
  if (column.column == Column::gradient) model.gradients().reducer().sum_was_set();
  if (column.column == Column::master) write_param(model, param, value);
}

void write_param(ShardedModel& model, int param, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  model.settle_updates();
  const ParamSpec& spec = model.plan().params[static_cast<std::size_t>(param)];
  check_shape(spec, value);
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const UnitSpec& unit_spec_of = unit_spec(model, param);
  Unit& unit = model.unit(place.unit);
  const layout::ElemRange slot = unit_spec_of.layout.slots()[static_cast<std::size_t>(place.slot)];
  // The shard, which is part of the flat buffer for units that stay whole; and the whole slot.
  write_part(unit.shard(), unit_spec_of.layout.shard(model.groups(place.unit).cut->rank()), slot,
             value);
  if (unit.state() == UnitState::whole) unit.slot(place.slot).copy_(value);
  if (spec.trainable && !model.states(place.unit).master_is_params()) {
    write_part(model.states(place.unit).master, model.states(place.unit).owned.range, slot, value);
  }
  unit.values_changed();
}

void take_from(ShardedModel& model, int param, int root) {
  const at::NoGradGuard no_grad;
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const at::Tensor slot = model.unit(place.unit).slot(place.slot);
  // The caller may have given the parameter another tensor instead of writing into it.
  const at::Tensor& given = model.unit(place.unit).param(place.slot);
  if (!given.is_alias_of(slot)) slot.copy_(given);
  if (slot.numel() > 0) model.peers().broadcast(slot.view(-1), root, "modified values").wait();
  write_param(model, param, slot);
}

void take_given(ShardedModel& model) {
  const at::NoGradGuard no_grad;
  for (const int index : model.step_order()) {
    const Unit& unit = model.unit(index);
    if (unit.state() != UnitState::whole) continue;
    for (std::size_t i = 0; i < unit.spec().params.size(); ++i) {
      const at::Tensor& slot = unit.slot(static_cast<int>(i));
      const at::Tensor& given = unit.param(static_cast<int>(i));
      if (given.is_alias_of(slot)) continue;
      const int param = unit.spec().params[i];
      check_given(model.plan().params[static_cast<std::size_t>(param)], given, slot);
      write_param(model, param, given.detach());
      given.set_data(slot);
    }
  }
}

layout::ElemRange owned_range(const ShardedModel& model, int param) {
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  if (!model.plan().params[static_cast<std::size_t>(param)].trainable) return {};
  const layout::ElemRange slot =
      unit_spec(model, param).layout.slots()[static_cast<std::size_t>(place.slot)];
  const layout::ElemRange both = layout::intersect(slot, model.states(place.unit).owned.range);
  if (both.size() == 0) return {};
  return {both.begin - slot.begin, both.end - slot.begin};
}

at::Tensor local_part(ShardedModel& model, int param, ColumnName column) {
  if (is_all_of_it(model, column) && model.plan().params[static_cast<std::size_t>(param)].trainable)
    return read_whole(model, param, column).view({-1});
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const UnitSpec& unit = unit_spec(model, param);
  const layout::ElemRange range = owned_range(model, param);
  const at::Tensor part = own_part(model, place.unit, column);
  if (range.size() == 0) return part.narrow(0, 0, 0);
  const std::int64_t slot = unit.layout.slots()[static_cast<std::size_t>(place.slot)].begin;
  const std::int64_t first = column.column == Column::gradient
                                 ? unit.layout.shard(model.groups(place.unit).cut->rank()).begin
                                 : model.states(place.unit).owned.range.begin;
  return part.narrow(0, slot + range.begin - first, range.size());
}

void write_local(ShardedModel& model, int param, ColumnName column, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  if (is_all_of_it(model, column)) {
    const ParamSpec& spec = model.plan().params[static_cast<std::size_t>(param)];
    return write_whole(model, param, column, value.reshape(spec.sizes));
  }
  local_part(model, param, column).copy_(value.reshape({-1}));
  if (column.column == Column::gradient) model.gradients().reducer().sum_was_set();
  if (column.column != Column::master) return;
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const UnitStates& states = model.states(place.unit);
  if (!states.master_is_params()) states.params.copy_(states.master);
  model.updates().publish(place.unit);
  model.updates().finish();
}

double own_squares(ShardedModel& model, int param) {
  const at::NoGradGuard no_grad;
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  if (!model.plan().params[static_cast<std::size_t>(param)].trainable) return 0;
  const at::Tensor sum = own_part(model, place.unit, {Column::gradient});
  double squares = 0;
  for (const layout::SlotPiece& piece :
       counted_pieces(model.plan(), place.unit, model.groups(place.unit))) {
    if (piece.slot != place.slot) continue;
    const at::Tensor part = sum.narrow(0, piece.in_shard.begin, piece.in_shard.size());
    squares += part.to(at::kDouble).square().sum().item<double>();
  }
  return squares;
}

at::Tensor local_param(ShardedModel& model, int param) {
  model.settle_updates();
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  const layout::FlatLayout& layout = unit_spec(model, param).layout;
  const at::Tensor& shard = model.unit(place.unit).shard();
  if (layout.slots().size() == 1) return shard;
  const layout::ElemRange mine = layout.shard(model.groups(place.unit).cut->rank());
  const layout::ElemRange both =
      layout::intersect(mine, layout.slots()[static_cast<std::size_t>(place.slot)]);
  return both.size() == 0 ? shard.narrow(0, 0, 0)
                          : shard.narrow(0, both.begin - mine.begin, both.size());
}

at::Tensor assemble(ShardedModel& model, int param, const at::Tensor& mine) {
  const at::NoGradGuard no_grad;
  const ParamSpec& spec = model.plan().params[static_cast<std::size_t>(param)];
  const layout::ElemRange range = owned_range(model, param);
  if (range.size() == spec.numel() && !model.settings().policy.shards_optimizer()) {
    return mine.reshape(spec.sizes).clone();
  }
  // Pieces differ in size from rank to rank: each rank adds its own to zeros.
  at::Tensor whole = at::zeros({spec.numel()}, mine.options().device(model.device()));
  if (range.size() > 0) whole.narrow(0, range.begin, range.size()).copy_(mine.reshape({-1}));
  const ParamPlace place = model.plan().places[static_cast<std::size_t>(param)];
  model.groups(place.unit).cut->all_reduce(whole, spec.name).wait();
  return whole.view(spec.sizes);
}

}  // namespace capstan::shard
