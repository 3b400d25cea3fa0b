#include "capstan/shard/unit.h"

#include <cassert>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "capstan/shard/placeholder.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::shard {

Unit::Unit(const UnitSpec& spec, std::span<const ParamSpec> all_params,
           std::vector<at::Tensor> params, store::Pool& pool, UnitRole role)
    : spec_(&spec),
      pool_(&pool),
      role_(role),
      storage_(spec.layout, slot_sizes(spec, all_params),
               at::TensorOptions(torch_dtype(spec.dtype)).device(pool.device())),
      params_(std::move(params)) {
  assert(params_.size() == spec.params.size());
  storage_.attach(pool.take(storage_.bytes(), store::MemoryKind::parameters));
  storage_.zero_padding();
  const at::TensorOptions options = storage_.flat().options();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& slot = storage_.slot(static_cast<int>(i));
    slot.copy_(params_[i].detach());
    params_[i].set_data(slot);
    if (!role.keep_whole) {
      const ParamSpec& param = all_params[static_cast<std::size_t>(spec.params[i])];
      placeholders_.push_back(make_placeholder(param.name, options));
    }
  }
  make_shard();
}

void Unit::make_shard() {
  const layout::ElemRange mine = spec_->layout.shard(role_.rank);
  if (role_.keep_whole || gather_is_free()) {
    // In a world of one, release() hands the memory over to the shard.
    shard_ = storage_.range(mine);
    return;
  }
  const at::Tensor part = storage_.range(mine);
  const auto bytes = static_cast<std::int64_t>(part.nbytes());
  store::Pool& home = shard_on_host() ? *role_.shard_home : *pool_;
  shard_ = tensor_over(home.take(bytes, store::MemoryKind::parameters), part.numel(),
                       part.options().device(home.device()));
  shard_.copy_(part);
}

void Unit::start_gather() {
  assert(state_ == UnitState::sharded);
  if (gather_is_free()) {
    // The shard keeps the memory; the flat buffer only looks at it.
    storage_.attach(c10::DataPtr(shard_.mutable_data_ptr(), shard_.device()));
  } else {
    storage_.attach(pool_->take(storage_.bytes(), store::MemoryKind::parameters));
  }
  state_ = UnitState::gathering;
}

void Unit::show() {
  assert(state_ == UnitState::gathering);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    params_[i].set_data(storage_.slot(static_cast<int>(i)));
  }
  state_ = UnitState::whole;
}

void Unit::release(bool lent) {
  assert(state_ != UnitState::sharded && !role_.keep_whole);
  if (state_ == UnitState::whole) {
    for (std::size_t i = 0; i < params_.size(); ++i) params_[i].set_data(placeholders_[i]);
  }
  state_ = UnitState::sharded;
  if (lent && storage_.viewed_elsewhere()) {
    leave_to_views();
    return;
  }
  c10::DataPtr memory = storage_.detach();
  if (gather_is_free() && shard_.is_alias_of(storage_.flat())) {
    shard_ = tensor_over(std::move(memory), shard_.numel(), shard_.options());
  }
}

void Unit::leave_to_views() {
  if (gather_is_free()) {  // the memory is the shard's, which updates change
    storage_.detach();
    storage_.attach(pool_->take(storage_.bytes(), store::MemoryKind::parameters));
    storage_.flat().copy_(shard_);
  }
  storage_.leave();
}

void Unit::bump_versions() {
  for (const at::Tensor& param : params_) torch::autograd::impl::bump_version(param);
}

}  // namespace capstan::shard
