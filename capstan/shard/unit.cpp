#include "capstan/shard/unit.h"

#include <cassert>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "capstan/shard/placeholder.h"
#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {

Unit::Unit(const UnitSpec& spec, std::span<const ParamSpec> all_params,
           std::vector<at::Tensor> params, UnitMemory memory, UnitRole role)
    : spec_(&spec),
      all_params_(all_params),
      device_(&memory.device),
      shard_home_(&memory.shard),
      placement_(memory.placement),
      role_(role),
      storage_(spec.layout, slot_sizes(spec, all_params),
               at::TensorOptions(torch_dtype(spec.dtype)).device(memory.device.device())),
      params_(std::move(params)) {
  assert(params_.size() == spec.params.size());
  storage_.attach(memory.device.take(storage_.bytes(), store::MemoryKind::parameters));
  storage_.zero_padding();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& slot = storage_.slot(static_cast<int>(i));
    slot.copy_(params_[i].detach());
    params_[i].set_data(slot);
  }
  shard_ = own_part().detach();  // a view would hold on to the flat buffer by its history
  if (!role.keep_whole) part_shard();
}

void Unit::make_placeholders() {
  for (const int index : spec_->params) {
    const ParamSpec& param = all_params_[static_cast<std::size_t>(index)];
    placeholders_.push_back(make_placeholder(param.name, storage_.flat().options()));
  }
}

// The shard leaves the flat buffer for memory of its own.
void Unit::part_shard() {
  if (gather_is_free()) {
    // It takes the buffer's, which from then on only looks at it.
    shard_.set_data(store::tensor_over(storage_.detach(), shard_.numel(), shard_.options()));
    storage_.attach(c10::DataPtr(shard_.mutable_data_ptr(), shard_.device()));
    return;
  }
  const at::Tensor own = store::new_tensor(*shard_home_, shard_.numel(), shard_.scalar_type(),
                                           store::MemoryKind::parameters);
  own.copy_(shard_);
  shard_.set_data(own);
}

void Unit::start_gather() {
  assert(state_ == UnitState::sharded);
  if (gather_is_free() && !role_.keep_whole) {
    storage_.attach(c10::DataPtr(shard_.mutable_data_ptr(), shard_.device()));
  } else {
    storage_.attach(device_->take(storage_.bytes(), store::MemoryKind::parameters));
    if (gather_is_free()) storage_.flat().copy_(shard_);
  }
  state_ = UnitState::gathering;
}

void Unit::show() {
  assert(state_ == UnitState::gathering);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    params_[i].set_data(storage_.slot(static_cast<int>(i)));
  }
  if (role_.keep_whole) shard_.set_data(own_part().detach());
  state_ = UnitState::whole;
}

void Unit::release(bool lent) {
  assert(state_ != UnitState::sharded);
  if (placeholders_.empty()) make_placeholders();
  if (state_ == UnitState::whole) {
    if (role_.keep_whole) part_shard();
    for (std::size_t i = 0; i < params_.size(); ++i) params_[i].set_data(placeholders_[i]);
  }
  state_ = UnitState::sharded;
  if (lent && storage_.viewed_elsewhere()) {
    leave_to_views();
  } else {
    storage_.detach();
  }
}

void Unit::leave_to_views() {
  if (gather_is_free()) {  // the memory is the shard's, which updates change
    storage_.detach();
    storage_.attach(device_->take(storage_.bytes(), store::MemoryKind::parameters));
    storage_.flat().copy_(shard_);
  }
  storage_.leave();
}

void Unit::keep_near() {
  assert(state_ == UnitState::whole);
  if (spec_->near_shards == 0 || near_is_fresh_) return;
  const std::int64_t elems = spec_->layout.padded_elems() / spec_->near_shards;
  const at::Tensor part = storage_.flat().narrow(0, role_.near_rank * elems, elems);
  if (!near_.defined()) {
    near_ = store::new_tensor(*device_, elems, part.scalar_type(), store::MemoryKind::parameters);
  }
  near_.copy_(part);
  near_is_fresh_ = true;
}

void Unit::values_changed() {
  near_is_fresh_ = false;
  for (const at::Tensor& param : params_) torch::autograd::impl::bump_version(param);
}

}  // namespace capstan::shard
