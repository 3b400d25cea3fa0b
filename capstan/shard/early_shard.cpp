#include "capstan/shard/early_shard.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "capstan/shard/placeholder.h"

namespace capstan::shard {

EarlyShard::EarlyShard(const at::Tensor& param, std::string name,
                       std::shared_ptr<comm::Group> group, c10::Device travel)
    : param_(param.getIntrusivePtr()),
      name_(std::move(name)),
      group_(std::move(group)),
      travel_(travel),
      sizes_(param.sizes().vec()),
      placeholder_(make_placeholder(name_, param.options())) {
  const at::NoGradGuard no_grad;
  at::Tensor whole = param.detach().contiguous();
  broadcast(whole, 0);
  keep(whole);
  at::Tensor(param).set_data(placeholder_);
}

at::Tensor EarlyShard::param() const {
  auto alive = param_.lock();
  assert(alive);  // the parameter owns this
  return at::Tensor(std::move(alive));
}

void EarlyShard::broadcast(const at::Tensor& whole, int root) {
  if (whole.numel() == 0 || group_->size() == 1) return;
  const at::Tensor flat = whole.view(-1).to(travel_);  // itself where it is there already
  group_->broadcast(flat, root, name_).wait();
  if (flat.device() != whole.device()) whole.view(-1).copy_(flat);
}

void EarlyShard::keep(const at::Tensor& whole) {
  const std::int64_t ranks = group_->size();
  const std::int64_t elems = (whole.numel() + ranks - 1) / ranks;
  const std::int64_t begin = std::min(elems * group_->rank(), whole.numel());
  const std::int64_t mine = std::min(elems, whole.numel() - begin);
  if (!part_.defined()) part_ = at::zeros({elems}, whole.options());
  part_.narrow(0, 0, mine).copy_(whole.reshape({-1}).narrow(0, begin, mine));
}

void EarlyShard::pin() {
  if (pins_++ > 0) return;
  const at::NoGradGuard no_grad;
  at::Tensor flat = part_.clone();
  if (group_->size() > 1) {
    flat = at::empty({part_.numel() * group_->size()}, part_.options().device(travel_));
    if (flat.numel() > 0) group_->all_gather(flat, part_.to(travel_), name_).wait();
    flat = flat.to(part_.device());
  }
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes_) numel *= size;
  param().set_data(flat.narrow(0, 0, numel).view(sizes_));
}

void EarlyShard::unpin() {
  assert(pins_ > 0);
  if (--pins_ == 0 && part_.defined()) param().set_data(placeholder_);
}

void EarlyShard::take_from(int root) {
  assert(pins_ > 0);
  const at::NoGradGuard no_grad;
  at::Tensor whole = param().detach().contiguous();
  broadcast(whole, root);
  if (!whole.is_alias_of(param())) param().set_data(whole);
  keep(whole);
}

}  // namespace capstan::shard
