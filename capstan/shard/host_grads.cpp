#include "capstan/shard/host_grads.h"

#include <utility>

#include "capstan/shard/flat_storage.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::shard {
namespace {

// Buffers for gradients that are added to others: one arrives while the other is added.
constexpr std::size_t kMaxGuests = 2;

}  // namespace

HostGrads::HostGrads(std::vector<bool> takes, DType accum, HostTraffic& traffic, store::Pool& pool)
    : takes_(std::move(takes)),
      accum_(torch_dtype(accum)),
      traffic_(traffic),
      pool_(pool),
      homes_(takes_.size()) {}

at::Tensor HostGrads::new_host(std::int64_t elems, at::ScalarType dtype) {
  const auto bytes = elems * static_cast<std::int64_t>(c10::elementSize(dtype));
  return tensor_over(pool_.take(bytes, store::MemoryKind::gradients), elems,
                     at::TensorOptions(dtype));
}

void HostGrads::take(int unit, at::Tensor sum) {
  Home& home = homes_[static_cast<std::size_t>(unit)];
  if (on_take) on_take(unit, sum, !home.filled);
  const bool first = !home.filled;
  home.filled = true;
  // A sum of one operand may stay in 16 bits; a home that was wider once is wide enough for it.
  if (!home.sum.defined()) home.sum = new_host(sum.numel(), sum.scalar_type());
  if (first && home.sum.scalar_type() == sum.scalar_type()) {
    HostTraffic::Ahead arrival = traffic_.fetch(home.sum, std::move(sum));
    if (on_ready) on_ready(unit, std::move(arrival));
    return;
  }
  if (guests_.size() >= kMaxGuests) finish();
  at::Tensor guest = new_host(sum.numel(), sum.scalar_type());
  traffic_.fetch(guest, std::move(sum));
  guests_.push_back({unit, std::move(guest), first});
}

void HostGrads::finish() {
  traffic_.finish_fetches();
  for (const Guest& guest : guests_) {
    Home& home = homes_[static_cast<std::size_t>(guest.unit)];
    if (before_change) before_change(guest.unit);
    if (guest.first) {
      home.sum.copy_(guest.values);
      if (on_ready) on_ready(guest.unit, {});
      continue;
    }
    if (c10::elementSize(home.sum.scalar_type()) < c10::elementSize(accum_)) {
      at::Tensor wide = new_host(home.sum.numel(), accum_);
      wide.copy_(home.sum);
      home.sum = std::move(wide);
    }
    home.sum.add_(guest.values);
    if (on_ready) on_ready(guest.unit, {});
  }
  guests_.clear();
}

void HostGrads::clear() {
  finish();
  for (Home& home : homes_) home.filled = false;
}

}  // namespace capstan::shard
