#include "capstan/engine/stored_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::engine {
namespace {

using checkpoint::Element;
using layout::ElemRange;

constexpr std::pair<Element, at::ScalarType> kTypes[] = {
    {Element::f64, at::kDouble},    {Element::f32, at::kFloat}, {Element::f16, at::kHalf},
    {Element::bf16, at::kBFloat16}, {Element::i64, at::kLong},  {Element::i32, at::kInt},
    {Element::i16, at::kShort},     {Element::i8, at::kChar},   {Element::u8, at::kByte},
    {Element::boolean, at::kBool}};

const shard::UnitSpec& unit_at(const shard::ShardedModel& model, int unit) {
  return model.plan().units[static_cast<std::size_t>(unit)];
}

int param_of(const shard::UnitSpec& unit, int slot) {
  return unit.params[static_cast<std::size_t>(slot)];
}

// The part of `values`, which holds `held` of a slot, that lies in this rank's shard.
void add_own_part(std::vector<HeldElems>& parts, const shard::ShardedModel& model, int unit,
                  const layout::SlotPiece& held, const at::Tensor& values) {
  if (!model.groups(unit).counted) return;
  const shard::UnitSpec& spec = unit_at(model, unit);
  const ElemRange slot = spec.layout.slots()[static_cast<std::size_t>(held.slot)];
  const ElemRange shard = spec.layout.shard(model.groups(unit).cut->rank());
  const ElemRange mine =
      layout::intersect({shard.begin - slot.begin, shard.end - slot.begin}, held.in_slot);
  if (mine.size() == 0) return;
  parts.push_back({param_of(spec, held.slot), mine,
                   values.narrow(0, mine.begin - held.in_slot.begin, mine.size())});
}

// From a device beside what it computes; its streams held nothing that writes to `values` when the
// save began.
void copy_to_host(const at::Tensor& host, const at::Tensor& values) {
  const c10::Device device = values.device();
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  const c10::StreamGuard on_ours(stream);
  host.copy_(values, /*non_blocking=*/true);
  stream.synchronize();
}

// Elements as bytes of a file: blocks are cut on whole elements.
checkpoint::Fill fill_from(at::Tensor values, std::int64_t begin_bytes) {
  return [values = std::move(values), begin_bytes](std::int64_t begin, std::span<std::byte> into) {
    const at::NoGradGuard no_grad;
    const auto size = static_cast<std::int64_t>(values.itemsize());
    const std::int64_t elems = std::ssize(into) / size;
    const at::Tensor target =
        at::from_blob(into.data(), {elems}, at::TensorOptions(values.scalar_type()));
    const at::Tensor wanted = values.narrow(0, (begin - begin_bytes) / size, elems);
    if (wanted.is_cpu() && wanted.is_contiguous()) {
      // Not copy_(): several threads of a save copy at once, and each would start a team of its
      // own.
      std::memcpy(into.data(), wanted.const_data_ptr(), into.size());
    } else if (wanted.is_cpu()) {
      target.copy_(wanted);
    } else {
      copy_to_host(target, wanted);
    }
  };
}

}  // namespace

Element element_of(at::ScalarType type) {
  for (const auto& [element, scalar] : kTypes) {
    if (scalar == type) return element;
  }
  throw ConfigError(
      {.what = fmt::format("a tensor of type {} cannot be saved", c10::toString(type)),
       .where = "checkpoint",
       .fix = "convert it to a type that safetensors files have, such as float32"});
}

at::ScalarType scalar_type_of(Element element) {
  return kTypes[static_cast<std::size_t>(element)].second;
}

checkpoint::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor) {
  return {name, element_of(tensor.scalar_type()), tensor.sizes().vec()};
}

StoredNames::StoredNames(const shard::Plan& plan, const ModelExtras& extras) {
  std::map<std::string, std::optional<std::int64_t>> rows;
  for (const StoredAs& each : extras.stored_as) {
    renamed_[each.in_model] = each.in_files;
    rows[each.in_model] = each.rows;
  }
  for (const shard::ParamSpec& param : plan.params) {
    checkpoint::TensorSpec spec{.name = buffer_name(param.name),
                                .shape = param.slice ? param.slice->shape : param.sizes};
    const auto limit = rows.find(param.name);
    if (limit != rows.end() && !spec.shape.empty()) {
      spec.shape.front() = limit->second.value_or(spec.shape.front());
    }
    const layout::Box whole = layout::whole_box(spec.shape);
    boxes_.push_back(param.slice ? layout::intersect(param.slice->box, whole) : whole);
    specs_.push_back(std::move(spec));
    std::vector<std::string> aliases;
    for (const auto& [alias, owner] : extras.aliases) {
      if (owner == param.name) aliases.push_back(alias);
    }
    aliases_.push_back(std::move(aliases));
  }
}

checkpoint::TensorSpec StoredNames::spec(int param, Element element) const {
  checkpoint::TensorSpec spec = specs_[static_cast<std::size_t>(param)];
  spec.element = element;
  return spec;
}

void StoredNames::add(int param, Element element, checkpoint::ColumnSpec& column) const {
  column.tensors.push_back(spec(param, element));
  const checkpoint::TensorSpec& added = column.tensors.back();
  if (box(param) == layout::whole_box(added.shape)) return;
  std::vector<layout::Box>& slices = column.slices[added.name];
  if (box(param).elems() > 0) slices.push_back(box(param));
}

std::string StoredNames::buffer_name(const std::string& in_model) const {
  const auto found = renamed_.find(in_model);
  return found == renamed_.end() ? in_model : found->second;
}

std::vector<std::string> StoredNames::all_names(int param) const {
  std::vector<std::string> names = {name(param)};
  const auto& aliases = aliases_[static_cast<std::size_t>(param)];
  names.insert(names.end(), aliases.begin(), aliases.end());
  return names;
}

std::vector<HeldElems> weights_to_write(shard::ShardedModel& model) {
  std::vector<HeldElems> parts;
  for (std::size_t u = 0; u < model.plan().units.size(); ++u) {
    const shard::UnitSpec& spec = model.plan().units[u];
    const at::Tensor& shard = model.unit(static_cast<int>(u)).shard();
    const shard::UnitGroups& groups = model.groups(static_cast<int>(u));
    if (!groups.counted) continue;
    for (const layout::SlotPiece& piece : spec.layout.pieces(groups.cut->rank())) {
      parts.push_back({param_of(spec, piece.slot), piece.in_slot,
                       shard.narrow(0, piece.in_shard.begin, piece.in_shard.size())});
    }
  }
  return parts;
}

std::vector<HeldElems> masters_to_write(shard::ShardedModel& model) {
  std::vector<HeldElems> parts;
  for (const int unit : model.step_order()) {
    const shard::UnitStates& states = model.states(unit);
    for (const layout::SlotPiece& piece : states.owned.pieces) {
      add_own_part(parts, model, unit, piece,
                   states.master.narrow(0, piece.in_shard.begin, piece.in_shard.size()));
    }
  }
  return parts;
}

std::vector<HeldElems> states_to_write(shard::ShardedModel& model, const StateColumn& column) {
  std::vector<HeldElems> parts;
  for (const StateColumn::Part& part : column.parts) {
    add_own_part(parts, model, part.unit, part.piece, part.values);
  }
  return parts;
}

std::vector<checkpoint::Piece> pieces_of(const std::string& column,
                                         const std::vector<HeldElems>& held,
                                         const StoredNames& names) {
  std::vector<checkpoint::Piece> pieces;
  for (const HeldElems& each : held) {
    if (!names.stored(each.param)) continue;
    const layout::Box& box = names.box(each.param);
    const ElemRange range = layout::intersect(each.in_param, {0, box.elems()});
    if (range.size() == 0) continue;
    const auto size = static_cast<std::int64_t>(each.values.itemsize());
    const at::Tensor values =
        each.values.narrow(0, range.begin - each.in_param.begin, range.size());
    const bool plain = values.is_cpu() && values.is_contiguous();
    pieces.push_back(
        {.column = column,
         .tensor = slice_spec(names.spec(each.param, {}), box).name,
         .begin = range.begin * size,
         .end = range.end * size,
         .fill = fill_from(values, range.begin * size),
         .on_device = !values.is_cpu(),
         .host = plain ? static_cast<const std::byte*>(values.const_data_ptr()) : nullptr});
  }
  return pieces;
}

checkpoint::Piece copied_piece(const std::string& column, const NamedTensor& tensor) {
  const at::Tensor flat = at::empty({tensor.tensor.numel()}, tensor.tensor.scalar_type());
  flat.copy_(tensor.tensor.detach().reshape({-1}));
  return {column, tensor.name, 0, static_cast<std::int64_t>(flat.nbytes()), fill_from(flat, 0)};
}

void read_elems(checkpoint::Reader& reader, const checkpoint::IndexTensor& tensor,
                const layout::Box& box, const HeldElems& held) {
  const at::NoGradGuard no_grad;
  const std::int64_t size = size_bytes(tensor.spec.element);
  const ElemRange range = layout::intersect(held.in_param, {0, box.elems()});
  if (range.size() == 0) return;
  const at::ScalarType type = scalar_type_of(tensor.spec.element);
  if (at::isFloatingType(type) != held.values.is_floating_point()) {
    throw ConfigError({.what = fmt::format("'{}' has dtype {}, which does not fit the model",
                                           tensor.spec.name, name(tensor.spec.element)),
                       .where = reader.folder().string(),
                       .fix = "load a checkpoint of this model; this one was changed by hand"});
  }
  reader.read(tensor, box, range.begin * size, range.end * size,
              [&](std::int64_t begin, std::span<const std::byte> bytes) {
                const std::int64_t elems = std::ssize(bytes) / size;
                // from_blob wants to write; copy_ only reads.
                const at::Tensor read = at::from_blob(const_cast<std::byte*>(bytes.data()), {elems},
                                                      at::TensorOptions(type));
                held.values.narrow(0, begin / size - held.in_param.begin, elems).copy_(read);
              });
}

at::Tensor read_tensor(checkpoint::Reader& reader, const checkpoint::IndexTensor& tensor) {
  at::Tensor whole = at::empty(tensor.spec.shape, scalar_type_of(tensor.spec.element));
  read_elems(reader, tensor, layout::whole_box(tensor.spec.shape),
             {0, {0, whole.numel()}, whole.view(-1)});
  return whole;
}

}  // namespace capstan::engine
